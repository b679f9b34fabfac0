"""Benchmark of a large ledger: start, memory and answers beside an empty ledger in the same run.

A ledger is filled with entries like those of real answers, a million by default. Then a process
that opens it is measured against one that opens an empty ledger: until the first answer, and in
resident memory. The service answers the same number of predictions from each. Verifying reads all
entries.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.ledger.server import Server, find_binaries
from tests.service.parts import NAME, save_model

import holdfast as hf
from benchmarks.service import _measure
from holdfast.ledger.transaction import Transaction

AT_ONCE = 5_000
OPEN = """
import json, resource, sys, time
import holdfast as hf
model, address, home, age = *sys.argv[1:4], int(sys.argv[4])
trained = hf.load(model)
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20
before, start = resident(), time.perf_counter()
predictor = hf.PrivatePredictor(trained, hf.Ledger(address, home=home))
row = {"age": age, "pulse": 61.5, "ward": "stroke", "admitted": "planned"}
predictor.ask(row, analyst="ada")
print(json.dumps({"seconds": time.perf_counter() - start, "growth": resident() - before}))
"""


def fill(ledger: hf.Ledger, entries: int) -> float:
    """Add entries of answers to a ledger, and return how many seconds that took."""
    start = time.perf_counter()
    left = entries

    def add(transaction: Transaction) -> None:
        account = transaction.books.account(NAME)
        mechanism = account.terms.default_mechanism()
        each = account.terms.meter.price(mechanism.guarantee(account.terms.neighbours))
        for number in range(min(AT_ONCE, left)):
            about = json.dumps({"request": [secrets.token_hex(16), secrets.token_hex(16)]})
            transaction.add(
                "answer", NAME, f"analyst {number % 50}", each, model="0" * 32,
                question=secrets.token_hex(32), label=number % 2, about=about,
            )  # fmt: skip

    while left > 0:
        ledger.transact(add)
        left -= AT_ONCE
    return time.perf_counter() - start


def opened(model: Path, address: str, home: str, rounds: int) -> tuple[float, float]:
    """Return the medians of seconds until the first answer, and of growth in MiB."""
    runs = []
    for turn in range(rounds):
        command = [sys.executable, "-c", OPEN, str(model), address, home, str(20 + turn)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return (
        statistics.median(run["seconds"] for run in runs),
        statistics.median(run["growth"] for run in runs),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--predictions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    table = Table(title=f"a ledger of {arguments.entries:,} entries beside an empty one")
    names = ("first answer s", "memory MiB", "per second", "p50 ms", "p99 ms", "verify s")
    for heading in ("database", "entries", *names):
        table.add_column(heading, justify="right")
    binaries = find_binaries()
    server = None if binaries is None else Server(binaries)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = save_model(folder)
        kinds = ["SQLite"] + (["PostgreSQL"] if server is not None else [])
        for kind in kinds:
            for entries in (0, arguments.entries):
                place = f"{kind}-{entries}"
                address = f"sqlite:///{folder}/{place}.db"
                if server is not None and kind == "PostgreSQL":
                    address = server.database(f"large{entries}")
                home = str(folder / f"home-{place}")
                ledger = hf.Ledger(address, home=home)
                planned = arguments.entries + 100 * arguments.predictions
                ledger.create_budget(NAME, hf.Budget(50.0, 1e-6), queries=planned)
                filled = fill(ledger, entries) if entries else 0.0
                if entries:
                    print(f"{kind}: {entries:,} entries in {filled:,.0f} s", file=sys.stderr)
                key = hf.ledger.add_key(ledger, NAME, "ada")
                seconds, growth = opened(model, address, home, arguments.rounds)
                runs = [
                    _measure("measured_app", model, address, home, key, arguments.predictions,
                             turn * arguments.predictions)
                    for turn in range(arguments.rounds)
                ]  # fmt: skip
                times = [sorted(run["seconds"]) for run in runs]
                at = [
                    1000 * statistics.median(each[int(part * len(each))] for each in times)
                    for part in (0.5, 0.99)
                ]
                start = time.perf_counter()
                count = ledger.verify()
                verified = time.perf_counter() - start
                table.add_row(
                    kind, f"{count:,}", f"{seconds:.2f}", f"{growth:.0f}",
                    f"{statistics.median(run['rate'] for run in runs):,.0f}",
                    f"{at[0]:.1f}", f"{at[1]:.1f}", f"{verified:.1f}",
                )  # fmt: skip
                ledger.close()
            table.add_section()
    if server is not None:
        server.stop()
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
