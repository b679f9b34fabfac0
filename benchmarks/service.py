"""Benchmark of the service: predictions per second against a bare committed insert per request.

20,000 single predictions from 32 clients on loopback, with 2 workers. The rival is the same service
with the answer fixed and one bare insert-and-commit per request; both run without padding, one
after the other in the same run. Clients, workers and database share this machine. Every answer is
checked against the ledger afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.ledger.server import Server, find_binaries
from tests.service.parts import NAME, free_port, save_model, wait_until_ready

import holdfast as hf

WORKERS, CLIENTS, TEXT_COLUMNS = 2, 32, 11
FOLDER = "HOLDFAST_BENCHMARK"


def measured_app() -> Any:
    """Return the service, which writes at its end how long ledger and certification took."""
    from holdfast.service.app import worker_app

    app = worker_app()
    _silence()
    predictor, spent = app.state.runtime.predictor, {"ledger": 0.0, "certification": 0.0}

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return work(*arguments)
            finally:
                spent[name] += time.perf_counter() - start

        return run

    predictor._certify = timed("certification", predictor._certify)
    predictor.ledger.transact_together = timed("ledger", predictor.ledger.transact_together)
    runtime, stop = app.state.runtime, app.state.runtime.stop

    def stop_and_report() -> None:
        stop()
        name = f"shares-{os.getpid()}.json"
        (Path(os.environ[FOLDER]) / name).write_text(json.dumps(spent))

    runtime.stop = stop_and_report
    return app


def rival_app() -> Any:
    """Return the same service with a fixed answer, and a bare committed insert per request."""
    from holdfast.service.app import worker_app

    app = worker_app()
    _silence()
    runtime = app.state.runtime
    insert, threads = _bare_insert(runtime.settings.ledger)
    pool = ThreadPoolExecutor(threads)

    async def ask(*_: Any) -> list[hf.Answer]:
        await asyncio.get_running_loop().run_in_executor(pool, insert)
        return [hf.Answer("home", 0, 0.0, 0.0)]

    runtime.ask = ask
    return app


def _bare_insert(address: str) -> tuple[Callable[[], None], int]:
    """Return an insert-and-commit of a row like the ledger's, and how many threads to run it in."""
    import queue

    sqlite = address.startswith("sqlite")
    mark = "?" if sqlite else "%s"
    columns = ", ".join(f"c{i}" for i in range(TEXT_COLUMNS))
    statement = f"INSERT INTO bare ({columns}) VALUES ({', '.join([mark] * TEXT_COLUMNS)})"
    threads = 1 if sqlite else 8  # SQLite has one writer at a time; more of them only wait
    connections: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(threads):
        connections.put(_connect(address))

    def insert() -> None:
        connection = connections.get()
        connection.execute("BEGIN IMMEDIATE" if sqlite else "BEGIN")
        connection.execute(statement, ["x" * 24] * TEXT_COLUMNS)
        connection.execute("COMMIT")
        connections.put(connection)

    return insert, threads


def _connect(address: str) -> Any:
    if address.startswith("sqlite"):
        import sqlite3

        connection = sqlite3.connect(
            address.removeprefix("sqlite:///"),
            timeout=60,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA synchronous=FULL")
        return connection
    import psycopg

    return psycopg.connect(address, autocommit=True)


def _silence() -> None:
    import logging

    for name in ("holdfast.service", "uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _run_clients(port: int, key: str, first: int, count: int, clients: int, results: Any) -> None:
    results.put(asyncio.run(_clients(port, key, first, count, clients)))


async def _clients(port: int, key: str, first: int, count: int, clients: int) -> dict[str, Any]:
    numbers = iter(range(first, first + count))
    seconds: list[float] = []
    found: dict[int, Any] = {}
    start = time.time()
    await asyncio.gather(*(_client(port, key, numbers, seconds, found) for _ in range(clients)))
    return {"start": start, "end": time.time(), "seconds": seconds, "found": found}


async def _client(
    port: int, key: str, numbers: Any, seconds: list[float], found: dict[int, Any]
) -> None:
    """Ask one query after another over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in numbers:
        query = {
            "age": 20 + number % 70,
            "pulse": 50 + number / 1e4,
            "ward": "stroke",
            "admitted": "planned",
        }
        body = json.dumps({"queries": [query]})
        writer.write(
            f"POST /v1/predictions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nIdempotency-Key: {number}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        start = time.perf_counter()
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        content = json.loads(await reader.readexactly(length))
        seconds.append(time.perf_counter() - start)
        found[number] = (int(head[9:12]), content)
    writer.close()


def _measure(
    factory: str, model: Path, ledger: str, home: str, key: str, count: int, first: int
) -> dict[str, Any]:
    port, folder = free_port(), str(model.parent)
    settings = hf.service.ServiceSettings(
        str(model), ledger, home, response_step=0.0, answers_per_minute=0,
        requests_per_minute=0, workers=WORKERS,
    )  # fmt: skip
    settings.export()
    environment = {**os.environ, FOLDER: folder, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "uvicorn", f"benchmarks.service:{factory}", "--factory"]
    options = ["--port", str(port), "--workers", str(WORKERS), "--log-level", "warning"]
    service = subprocess.Popen([*command, *options, "--no-access-log"], env=environment)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}")
        return _load(port, key, count, first)
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(60)


def _load(port: int, key: str, count: int, first: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    halves = [
        context.Process(
            target=_run_clients,
            args=(port, key, first + part * count // 2, count // 2, CLIENTS // 2, results),
        )
        for part in range(2)
    ]
    for each in halves:
        each.start()
    parts = [results.get() for _ in halves]
    for each in halves:
        each.join()
    seconds = sorted(second for part in parts for second in part["seconds"])
    found = {number: answer for part in parts for number, answer in part["found"].items()}
    span = max(part["end"] for part in parts) - min(part["start"] for part in parts)
    return {"rate": len(seconds) / span, "span": span, "seconds": seconds, "found": found}


def _check(ledger: hf.Ledger, before: int, found: dict[int, Any]) -> str:
    """Return what came of the requests; exit if an answer was not charged exactly once."""
    answered = [content for status, content in found.values() if status == 200]
    refused = [content for status, content in found.values() if status == 403]
    if len(answered) + len(refused) != len(found):
        wrong = next(content for status, content in found.values() if status not in (200, 403))
        raise SystemExit(f"an error that is no budget refusal: {wrong}")
    status, entries = ledger.status(NAME), ledger.entries()
    charged = [entry for entry in entries if entry.kind == "answer"]
    price = int(charged[-1].loss)
    spent = sum(int(entry.loss) for entry in charged)
    if len(charged) - before != len(answered) or spent != price * len(charged):
        raise SystemExit(f"{len(answered)} answers, but {len(charged) - before} charges")
    return f"{len(answered):,} / {len(refused):,}, {status.share_spent:.1%} spent"


def _prepare(ledger: str, home: str, count: int) -> tuple[hf.Ledger, str]:
    opened = hf.Ledger(ledger, home=home)
    # Two of three rounds fit; the last one ends with refusals.
    opened.create_budget(NAME, hf.Budget(5.0, 1e-6), queries=int(2.9 * count))
    connection = _connect(ledger)
    serial = "INTEGER PRIMARY KEY" if ledger.startswith("sqlite") else "BIGSERIAL PRIMARY KEY"
    columns = ", ".join(f"c{i} VARCHAR NOT NULL" for i in range(TEXT_COLUMNS))
    connection.execute(f"CREATE TABLE bare (number {serial}, {columns})")
    connection.close()
    return opened, hf.ledger.add_key(opened, NAME, "ada")


def _shares(folder: Path, span: float) -> str:
    spent = [json.loads(path.read_text()) for path in folder.glob("shares-*.json")]
    for path in folder.glob("shares-*.json"):
        path.unlink()
    return ", ".join(
        f"{sum(each[name] for each in spent) / (WORKERS * span):.0%}"
        for name in ("ledger", "certification")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predictions", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    table = Table(
        title=f"{arguments.predictions:,} predictions, {CLIENTS} clients, {WORKERS} workers"
    )
    # Of the workers' time, with two threads each; that in the ledger includes waiting.
    shares = "time in ledger, certification"
    figures = ("per second", "p50 ms", "p95 ms", shares, "answered / refused")
    for heading in ("database", "service", *figures):
        table.add_column(heading, justify="right")
    binaries = find_binaries()
    server = None if binaries is None else Server(binaries)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = save_model(folder)
        addresses = {"SQLite": f"sqlite:///{folder}/ledger.db"}
        if server is not None:
            addresses["PostgreSQL"] = server.database("bench")
        for database, address in addresses.items():
            home = str(folder / f"home-{database}")
            ledger, key = _prepare(address, home, arguments.predictions)
            rates: dict[str, list[float]] = {"holdfast": [], "bare insert": []}
            for turn in range(arguments.rounds):
                for kind, factory in (("bare insert", "rival_app"), ("holdfast", "measured_app")):
                    before = ledger.status(NAME).answers
                    first = turn * arguments.predictions
                    run = _measure(factory, model, address, home, key, arguments.predictions, first)
                    rates[kind].append(run["rate"])
                    ours = kind == "holdfast"
                    table.add_row(
                        database,
                        kind,
                        f"{run['rate']:,.0f}",
                        *(
                            f"{1000 * run['seconds'][int(p * len(run['seconds']))]:.1f}"
                            for p in (0.5, 0.95)
                        ),
                        _shares(folder, run["span"]) if ours else "",
                        _check(ledger, before, run["found"]) if ours else "",
                    )
            ratio = statistics.median(rates["holdfast"]) / statistics.median(rates["bare insert"])
            table.add_row(database, "ratio of medians", f"{ratio:.2f}")
            table.add_section()
            ledger.close()
    if server is not None:
        server.stop()
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
