"""Many processes share one budget, and some are killed.

Nothing is overspent, answered without charge or charged twice.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.serving import PredictionRequest

from .parts import NAME, query, small_model
from .worker import ask_all

PROCESSES, ASKS = 8, 500
BUDGET = hf.Budget(10.0, 1e-5)

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["holdfast.serving.predictor"])


class ClientHarness:
    """A ledger, a saved model, and the logs of the clients that use them."""

    def __init__(self, address: str, folder: Path, queries: int) -> None:
        self.address, self.home, self.folder = address, folder / "home", folder
        self.model = small_model()
        self.model.save(folder / "model.holdfast")
        self.ledger = hf.Ledger(address, home=self.home)
        self.ledger.create_budget(NAME, BUDGET, queries=queries)

    def client(self, analyst: str, first: int, count: int, ready=None) -> multiprocessing.Process:
        arguments = (
            self.address,
            str(self.home),
            str(self.folder / "model.holdfast"),
            str(self.log(analyst)),
            analyst,
            first,
            count,
            ready,
        )
        process = context.Process(target=ask_all, args=arguments, daemon=True)
        process.start()
        return process

    def log(self, analyst: str) -> Path:
        return self.folder / f"{analyst}.log"

    def logged(self, analyst: str) -> list[dict]:
        return [json.loads(line) for line in self.log(analyst).read_text().splitlines()]

    def check(self, analysts: list[str]) -> tuple[int, int]:
        """Check entries against the clients' logs; return the numbers of answers and of entries.

        Every answer that a client has is an entry, no question has two entries, and the sums are
        right.
        """
        assert self.ledger.verify() == len(self.ledger.entries())
        entries = [entry for entry in self.ledger.entries() if entry.kind == "answer"]
        charged = Counter((entry.analyst, entry.question) for entry in entries)
        assert max(charged.values()) == 1, "charged twice"
        label_of = {(entry.analyst, entry.question): entry.label for entry in entries}
        predictor = hf.PrivatePredictor(self.model, self.ledger)
        answers = 0
        for analyst in analysts:
            for line in self.logged(analyst):
                if "label" in line:
                    answers += 1
                    assert (
                        label_of[analyst, self.question(predictor, analyst, line["query"])]
                        == line["label"]
                    ), "answered without charge"
        terms = self.ledger.status(NAME)
        assert sum(int(entry.loss) for entry in entries) * 2.0**-40 == terms.spent <= terms.limit
        return answers, len(entries)

    def question(self, predictor: hf.PrivatePredictor, analyst: str, number: int) -> str:
        features, _ = predictor.features_of(query(number))
        return predictor._asked(features, PredictionRequest(None, analyst)).questions[0]


def test_eight_processes_never_overspend(
    address: str, tmp_path: Path, figures: dict[str, str]
) -> None:
    affordable = 3000
    hall = ClientHarness(address, tmp_path, affordable)
    analysts = [f"analyst-{number}" for number in range(PROCESSES)]
    started = time.monotonic()
    clients = [hall.client(analyst, 0, ASKS) for analyst in analysts]
    for client in clients:
        client.join(300)
        assert client.exitcode == 0
    seconds = time.monotonic() - started
    answers, entries = hall.check(analysts)
    refused = sum("refused" in line for analyst in analysts for line in hall.logged(analyst))
    assert answers == entries == affordable  # the whole budget was spent, exactly once
    assert answers + refused == PROCESSES * ASKS
    status = hall.ledger.status(NAME)
    assert status.remaining < status.limit / affordable
    figures[f"{PROCESSES} processes x {ASKS} asks, {address.split(':')[0]}"] = (
        f"{answers} answered, {refused} refused, spent {status.spent:.6f} of {status.limit:.6f}, "
        f"{seconds:.0f} s"
    )


def kill_at_random(hall: ClientHarness, kills: int, seed: int) -> tuple[int, int, int]:
    """Kill two clients in turn at random moments and restart them.

    Returns the numbers of answers, of entries, and of answers received again without charge.
    """
    chance = random.Random(seed)
    analysts, clients = ["left", "right"], {}
    for number in range(kills):
        analyst = analysts[number % 2]
        for name in analysts:
            if name not in clients or not clients[name].is_alive():
                ready = context.Event()
                clients[name] = hall.client(name, 0, 10**6, ready)
                assert ready.wait(60)
        time.sleep(chance.uniform(0.0, 0.1))
        os.kill(clients[analyst].pid, signal.SIGKILL)
        clients[analyst].join()
    for client in clients.values():
        client.kill()
        client.join()
    for analyst in analysts:  # drop an incomplete last line, which nobody has read
        whole = hall.log(analyst).read_text().rpartition("\n")[0]
        hall.log(analyst).write_text(whole + "\n" if whole else "")
    again = sum(line.get("cost") == 0.0 for analyst in analysts for line in hall.logged(analyst))
    return *hall.check(analysts), again


def test_twenty_kills(address: str, tmp_path: Path, figures: dict[str, str]) -> None:
    answers, entries, again = kill_at_random(ClientHarness(address, tmp_path, 100_000), 20, seed=1)
    assert answers > 50
    figures[f"20 kills, {address.split(':')[0]}"] = (
        f"{answers} answers received, {entries} charged, {again} received again, free of charge"
    )


@pytest.mark.slow
def test_two_hundred_kills(address: str, tmp_path: Path, figures: dict[str, str]) -> None:
    answers, entries, again = kill_at_random(ClientHarness(address, tmp_path, 100_000), 200, seed=2)
    assert answers > 500
    figures[f"200 kills, {address.split(':')[0]}"] = (
        f"{answers} answers received, {entries} charged, {again} received again, free of charge"
    )
