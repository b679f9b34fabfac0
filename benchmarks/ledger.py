"""Benchmark of the ledger: asks per second against a bare insert-and-commit loop.

An ask does everything that `PrivatePredictor.ask` does, except that the certificate is computed
once and reused: reading the query, drawing, the transaction, verification, seal, charge, commit,
flush, head. The baselines insert and commit a row of the same size, one through SQLAlchemy, which
the ledger uses as well, and one through the bare driver; each of their threads has its own
connection. The columns "whole ask" include the evaluation of the model. All are measured on the
same database in the same run.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import torch
from rich.console import Console
from rich.table import Table
from tests.ledger.parts import NAME, small_model
from tests.ledger.server import Server, find_binaries

import holdfast as hf

TEXT_COLUMNS = 11  # text columns in addition to the number, as many as an entry has
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["holdfast.serving.predictor", "sqlalchemy", "psycopg"])


def driver_address(address: str) -> str:
    return address.replace("postgresql:", "postgresql+psycopg:")


Run = Callable[[], None]


def insert_with_sqlalchemy(
    address: str, home: str, threads: int, count: int, first: int
) -> list[Run]:
    engine = sa.create_engine(
        driver_address(address),
        connect_args={"timeout": 60} if address.startswith("sqlite") else {},
        pool_size=threads,
    )
    rows = sa.table("bare", sa.column("number"), *(sa.column(f"c{i}") for i in range(TEXT_COLUMNS)))
    if address.startswith("sqlite"):
        sa.event.listen(
            engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=FULL")
        )
    engine.connect().close()

    def run(start: int) -> None:
        for number in range(start, start + count):
            with engine.begin() as connection:
                connection.execute(
                    rows.insert(),
                    {"number": number, **{f"c{i}": "x" * 24 for i in range(TEXT_COLUMNS)}},
                )

    return [partial(run, first + thread * count) for thread in range(threads)]


def insert_with_driver(address: str, home: str, threads: int, count: int, first: int) -> list[Run]:
    mark = "?" if address.startswith("sqlite") else "%s"
    insert = f"INSERT INTO bare VALUES ({', '.join([mark] * (TEXT_COLUMNS + 1))})"

    def connect() -> tuple[Any, str]:
        if address.startswith("sqlite"):
            import sqlite3

            file = address.removeprefix("sqlite:///")
            connection = sqlite3.connect(
                file, timeout=60, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA synchronous=FULL")
            return connection, "BEGIN IMMEDIATE"
        import psycopg

        return psycopg.connect(address, autocommit=True), "BEGIN"

    def run(connection: Any, begin: str, start: int) -> None:
        for number in range(start, start + count):
            connection.execute(begin)
            connection.execute(insert, (number, *["x" * 24] * TEXT_COLUMNS))
            connection.execute("COMMIT")

    return [partial(run, *connect(), first + thread * count) for thread in range(threads)]


def make_askers(
    address: str, home: str, threads: int, count: int, first: int, whole: bool = False
) -> list[Run]:
    predictor = hf.PrivatePredictor(small_model(), hf.Ledger(address, home=home))
    if not whole:
        certificate = predictor._certify(predictor._zero_query())
        predictor._certify = lambda features: certificate  # type: ignore[method-assign]
    queries = [torch.tensor([1e-3 * number, 1.0]) for number in range(count)]

    def run(analyst: str) -> None:
        for query in queries:
            predictor.ask(query, analyst=analyst)

    return [partial(run, f"analyst {first}.{thread}") for thread in range(threads)]


def make_askers_with_model(
    address: str, home: str, threads: int, count: int, first: int
) -> list[Run]:
    return make_askers(address, home, threads, count, first, whole=True)


def make_askers_with_model_by_100(
    address: str, home: str, threads: int, count: int, first: int
) -> list[Run]:
    predictor = hf.PrivatePredictor(small_model(), hf.Ledger(address, home=home))
    queries = torch.stack([torch.tensor([1e-3 * number, 1.0]) for number in range(count)])

    def run(analyst: str) -> None:
        for block in queries.split(100):
            predictor.ask(block, analyst=analyst)

    return [partial(run, f"analyst {first}.{thread}") for thread in range(threads)]


def run_client(
    make: Callable[..., list[Run]], arguments: tuple[Any, ...], barrier: Any, spans: Any
) -> None:
    runs = make(*arguments)
    barrier.wait()
    start = time.time()
    with ThreadPoolExecutor(len(runs)) as pool:
        for done in [pool.submit(run) for run in runs]:
            done.result()
    spans.put((start, time.time()))


def rows_per_second(
    make: Callable[..., list[Run]],
    address: str,
    home: str,
    processes: int,
    threads: int,
    rows: int,
    first: int,
) -> float:
    """Return the rows per second of all processes and threads together."""
    barrier, spans = context.Barrier(processes), context.Queue()
    count = -(-rows // threads)  # per thread
    clients = [
        context.Process(
            target=run_client,
            args=(
                make,
                (address, home, threads, count, first + number * threads * count),
                barrier,
                spans,
            ),
        )
        for number in range(processes)
    ]
    for process in clients:
        process.start()
    for process in clients:
        process.join()
        if process.exitcode:
            raise SystemExit(f"a client process failed with exit code {process.exitcode}")
    found = [spans.get(timeout=60) for _ in clients]
    return (
        processes
        * threads
        * count
        / (max(end for _, end in found) - min(start for start, _ in found))
    )


def prepare(address: str, home: str) -> None:
    hf.Ledger(address, home=home).create_budget(NAME, hf.Budget(10.0, 1e-5), queries=10**6)
    with sa.create_engine(driver_address(address)).begin() as connection:
        columns = ", ".join(f"c{i} VARCHAR NOT NULL" for i in range(TEXT_COLUMNS))
        connection.execute(sa.text(f"CREATE TABLE bare (number BIGINT PRIMARY KEY, {columns})"))


KINDS: dict[str, Callable[..., list[Run]]] = {
    "bare, driver": insert_with_driver,
    "bare, SQLAlchemy": insert_with_sqlalchemy,
    "ask": make_askers,
    "whole ask": make_askers_with_model,
    "whole ask, 100 at once": make_askers_with_model_by_100,
}


_FIRST_ROW_NUMBERS = itertools.count(0, 1_000_000)  # first row number of each measurement


def measure(
    address: str, home: str, processes: int, threads: int, rows: int, rounds: int
) -> dict[str, float]:
    """Return the best rate of each kind.

    The kinds are interleaved, so that a temporary slowdown of the machine affects all of them.
    """
    best = dict.fromkeys(KINDS, 0.0)
    for _ in range(rounds):
        for name, make in KINDS.items():
            best[name] = max(
                best[name],
                rows_per_second(
                    make, address, home, processes, threads, rows, next(_FIRST_ROW_NUMBERS)
                ),
            )
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500, help="rows per process")
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    table = Table(title="rows per second, all processes together, each on disk before the next")
    for heading in ("database", "processes x threads", *KINDS, "SQLAlchemy : ask", "driver : ask"):
        table.add_column(heading, justify="right")
    binaries = find_binaries()
    server = None if binaries is None else Server(binaries)
    with tempfile.TemporaryDirectory() as folder:
        addresses = {"SQLite": f"sqlite:///{folder}/ledger.db"}
        if server is not None:
            addresses["PostgreSQL"] = server.database("bench")
        for name, address in addresses.items():
            home = str(Path(folder) / f"home-{name}")
            prepare(address, home)
            for processes, threads in itertools.product((1, 4), (1, 8)):
                found = measure(address, home, processes, threads, arguments.rows, arguments.rounds)
                ratios = [
                    found[bare] / found["ask"] for bare in ("bare, SQLAlchemy", "bare, driver")
                ]
                figures = [
                    *(f"{found[kind]:,.0f}" for kind in KINDS),
                    *(f"{ratio:.2f}" for ratio in ratios),
                ]
                table.add_row(name, f"{processes} x {threads}", *figures)
    if server is not None:
        server.stop()
    Console().print(table)


if __name__ == "__main__":
    main()
