"""Benchmark of response times: by how much do stable and unstable queries differ.

10,000 single queries, half of them far from the decision boundary and half close to it, in random
order, each new, over 8 connections to one worker. Reported is the difference of the medians, with a
95% interval from resampling, as a share of the response step; below 5% is the goal. The same
without padding shows what the padding hides.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from tests.service.parts import NAME, ServiceProcess, save_model

import holdfast as hf

CLIENTS, RESAMPLES = 8, 2000


def make_queries(model: Path, count: int) -> list[tuple[bool, dict[str, Any]]]:
    """Return distinct queries in random order, each with whether its label is stable."""
    draw, trained = random.Random(0), hf.load(model)
    rows: list[dict[str, Any]] = []
    for _ in range(40 * count):
        age, pulse = draw.uniform(18, 100), draw.uniform(40, 180)
        rows.append({"age": age, "pulse": pulse, "ward": "medicine", "admitted": "planned"})
    distances = trained.certify({name: [row[name] for row in rows] for name in rows[0]}).distances
    order = distances.argsort().tolist()
    unstable, stable = order[: count // 2], order[-(count // 2) :]
    print(
        f"unstable queries: distances up to {int(distances[unstable].max())}; "
        f"stable ones: from {int(distances[stable].min())}"
    )
    queries = [(False, rows[place]) for place in unstable] + [
        (True, rows[place]) for place in stable
    ]
    draw.shuffle(queries)
    return queries


async def ask_all(port: int, key: str, queries: list[Any]) -> dict[bool, list[float]]:
    """Return the seconds until each response, by whether the label is stable."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    waiting = iter(queries)

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for stable, query in waiting:
            body = json.dumps({"queries": [query]})
            request = (
                f"POST /v1/predictions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}"
            ).encode()
            start = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            seconds[stable].append(time.perf_counter() - start)
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            content = await reader.readexactly(length)
            if not head.startswith(b"HTTP/1.1 200"):
                raise SystemExit(content.decode())
        writer.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return seconds


def difference(seconds: dict[bool, list[float]]) -> tuple[float, float, float]:
    """Return the difference of the medians in seconds, and the ends of its 95% interval."""
    draw = np.random.default_rng(0)
    stable, unstable = np.array(seconds[True]), np.array(seconds[False])

    def resampled(values: Any) -> Any:
        return np.median(draw.choice(values, (RESAMPLES, len(values))), axis=1)

    found = resampled(stable) - resampled(unstable)
    low, high = np.quantile(found, [0.025, 0.975])
    return float(np.median(stable) - np.median(unstable)), float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--asks", type=int, default=10_000)
    parser.add_argument("--step", type=float, default=0.05, help="the response step in seconds")
    arguments = parser.parse_args()
    table = Table(title=f"{arguments.asks:,} asks, {CLIENTS} connections, 1 worker")
    for heading in ("padding", "median stable", "median unstable", "difference", "95% interval",
                    "share of the step"):  # fmt: skip
        table.add_column(heading, justify="right")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = save_model(folder)
        queries = make_queries(model, arguments.asks)
        for step in (arguments.step, 0.0):
            ledger = hf.Ledger(f"sqlite:///{folder}/ledger-{step}.db", home=folder / f"home-{step}")
            ledger.create_budget(NAME, hf.Budget(5.0, 1e-6), queries=2 * arguments.asks)
            key = hf.ledger.add_key(ledger, NAME, "ada")
            options = ["--response-step", str(step), "--workers", "1"]
            options += ["--answers-per-minute", "0", "--requests-per-minute", "0"]
            home = folder / f"home-{step}"
            with ServiceProcess(model, ledger.address, *options, home=home) as service:
                seconds = asyncio.run(ask_all(service.port, key, queries))
            shift, low, high = difference(seconds)
            share = f"{max(abs(low), abs(high)) / arguments.step:.2%} at most"
            table.add_row(
                f"{1000 * step:.0f} ms",
                *(f"{1000 * float(np.median(seconds[kind])):.3f} ms" for kind in (True, False)),
                f"{1e6 * shift:+.0f} µs",
                f"{1e6 * low:+.0f} to {1e6 * high:+.0f} µs",
                share,
            )
            ledger.close()
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
