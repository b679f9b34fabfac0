"""Benchmark of tables in files: time in units of plain torch on the same files, and peak memory.

Each measurement is a process of its own, so that its peak memory is its own. `network` bounds four
hidden layers of 128 for one full-batch step; `head` trains a linear head for 20 steps; the rival
reads the same files in the same parts and takes as many steps of plain SGD in torch. `engines`
trains an ensemble on the IMDB features of HOLDFAST_DATA, locally and on Ray.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet
from rich.console import Console
from rich.table import Table
from torch import nn

import holdfast as hf

NETWORK_WIDTH, HEAD_WIDTH, DISTANCES, HEAD_STEPS = 188, 100, 10, 20
PART = 65_536


def write_table(path: Path, rows: int, width: int) -> None:
    """Write made-up records, part by part; the first rows are the same for every number."""
    names = [*(f"f{number}" for number in range(width)), "y"]
    schema = pa.schema([(name, pa.int8() if name == "y" else pa.float32()) for name in names])
    with parquet.ParquetWriter(path, schema, compression="none") as writer:
        for first in range(0, rows, PART):
            chance, count = np.random.default_rng(first), min(PART, rows - first)
            y = chance.integers(0, 2, count, dtype=np.int8)
            x = chance.standard_normal((count, width), dtype=np.float32)
            x[:, : width // 4] += 0.3 * (2.0 * y[:, None] - 1)
            writer.write_table(pa.table([*x.T, y], schema))


def parts(path: Path) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the records as a program in plain torch would read them."""
    for batch in parquet.ParquetFile(path).iter_batches(PART, use_threads=False):
        *columns, y = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
        yield torch.from_numpy(np.stack(columns, 1)), torch.from_numpy(y).long()


def deep(width: int) -> nn.Module:
    torch.manual_seed(0)
    sizes = [width, 128, 128, 128, 128]
    hidden = [
        layer
        for inputs, outputs in pairwise(sizes)
        for layer in (nn.Linear(inputs, outputs), nn.ReLU())
    ]
    return nn.Sequential(*hidden, nn.Linear(128, 2))


def plain_sgd(path: Path, model: nn.Module, steps: int, rows: int) -> None:
    """Take full-batch steps, with gradients summed over blocks that fit the processor's cache."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        for x, y in parts(path):
            for block, labels in zip(x.split(4096), y.split(4096), strict=True):
                loss = nn.functional.cross_entropy(model(block), labels, reduction="sum") / rows
                loss.backward()
        optimizer.step()


def train_network(path: Path, rows: int) -> None:
    recipe = hf.Recipe(epochs=1, learning_rate=0.5, clip=0.05, batch_size=rows)
    records = hf.Dataset.parquet(path, label="y", classes=2)
    hf.train(deep(NETWORK_WIDTH), records, recipe, max_distance=DISTANCES, progress=False)


def head_recipe(rows: int) -> hf.LinearRecipe:
    """Return a recipe that takes HEAD_STEPS steps."""
    from holdfast.heads.ball import Schedule
    from holdfast.heads.schemes import make_scheme

    for travel in np.arange(1.0, 200.0, 0.5):
        recipe = hf.LinearRecipe(batch_size=rows, travel=float(travel))
        if Schedule.of(recipe, make_scheme("pairs", 2).loss(recipe).curvature).count == HEAD_STEPS:
            return recipe
    raise AssertionError("no such travel")


def train_head(path: Path, rows: int) -> None:
    records = hf.Dataset.parquet(path, label="y", classes=2)
    hf.train_linear(records, head_recipe(rows), progress=False)


JOBS: dict[str, Callable[[Path, int], None]] = {
    "network": train_network,
    "network rival": lambda path, rows: plain_sgd(path, deep(NETWORK_WIDTH), 1, rows),
    "head": train_head,
    "head rival": lambda path, rows: plain_sgd(path, nn.Linear(HEAD_WIDTH, 2), HEAD_STEPS, rows),
}


def measure(job: str, path: Path, rows: int) -> dict[str, float]:
    """Run a job in a process of its own, and return its seconds and its peak memory."""
    command = [sys.executable, "-m", "benchmarks.large_tables", "one", job, str(path), str(rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def run_one(job: str, path: Path, rows: int) -> None:
    warnings.simplefilter("ignore")
    small = path.with_name("small.parquet")
    JOBS[job](small, parquet.ParquetFile(small).metadata.num_rows)  # compiles the loops
    started = time.perf_counter()
    JOBS[job](path, rows)
    seconds = time.perf_counter() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": seconds, "gibibytes": memory}))


def compare(kind: str, sizes: list[int], folder: Path) -> Table:
    width = NETWORK_WIDTH if kind == "network" else HEAD_WIDTH
    table = Table(title=f"{kind}, {width} features")
    per = f"ours per k = 0..{DISTANCES}" if kind == "network" else "ours per step"
    for name in ("rows", "ours (s)", "GiB", "torch (s)", "GiB", "ratio", per):
        table.add_column(name, justify="right")
    write_table(folder / "small.parquet", 5000, width)
    times = []
    for rows in sizes:
        path = folder / f"{rows}.parquet"
        write_table(path, rows, width)
        ours, rival = measure(kind, path, rows), measure(f"{kind} rival", path, rows)
        path.unlink()
        ratio = ours["seconds"] / rival["seconds"]
        each = ratio / (DISTANCES + 1) if kind == "network" else ratio
        times.append(ours["seconds"])
        figures = [ours["seconds"], ours["gibibytes"], rival["seconds"], rival["gibibytes"]]
        table.add_row(f"{rows:,}", *(f"{figure:.2f}" for figure in [*figures, ratio, each]))
        Console().print(f"{rows:,} rows: {ours}, {rival}")
    if len(sizes) > 1:
        growth = math.log(times[-1] / times[0]) / math.log(sizes[-1] / sizes[0])
        table.caption = f"time grows like rows to the power of {growth:.2f}"
    return table


def compare_engines(folder: Path, rounds: int) -> Table:
    """Train 25 members with K = 100 on IMDB, locally and on Ray."""
    archive = np.load(folder / "imdb" / "imdb_minilm.npz")
    x = torch.from_numpy(archive["X_train"].astype(np.float32))
    y = torch.from_numpy(archive["y_train"].astype(np.int64))
    recipe = hf.Recipe(epochs=2, clip=0.01, batch_size=1000, loss="binary_cross_entropy")

    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(x.shape[1], 100), nn.ReLU(), nn.Linear(100, 1))

    options: dict[str, Any] = {"max_distance": 100, "members": 25, "progress": False}
    import ray

    seconds: dict[str, list[float]] = {"local": [], "ray": []}
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    for engine in seconds:  # compiles the loops, here and in the workers
        hf.train_ensemble(make, x[:500], y[:500], recipe, engine=engine, **options)
    for _ in range(rounds):
        for engine, found in seconds.items():
            started = time.perf_counter()
            hf.train_ensemble(make, x, y, recipe, engine=engine, **options)
            found.append(time.perf_counter() - started)
            Console().print(f"{engine}: {found[-1]:.1f} s")
    ray.shutdown()
    table = Table(title=f"25 members x K = 100 on IMDB, {os.cpu_count()} cores")
    for name in ("local (s)", "Ray (s)", "ratio of the medians"):
        table.add_column(name, justify="right")
    local, spread = (float(np.median(found)) for found in seconds.values())
    table.add_row(f"{local:.1f}", f"{spread:.1f}", f"{spread / local:.3f}")
    return table


def compare_workers(rows: int) -> Table:
    """Train one network on Ray with one worker and with two."""
    import ray

    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (rows,), generator=generator)
    x = torch.randn(rows, NETWORK_WIDTH, generator=generator) + 0.3 * (2 * y[:, None] - 1)
    recipe = hf.Recipe(epochs=2, learning_rate=0.5, clip=0.05, batch_size=rows)
    options: dict[str, Any] = {"max_distance": DISTANCES, "engine": "ray", "progress": False}
    seconds = []
    for workers in (1, 2):
        ray.init(address="local", num_cpus=workers, include_dashboard=False, log_to_driver=False)
        for count in (2000, rows):  # the first run compiles the loops in the workers
            started = time.perf_counter()
            hf.train(deep(NETWORK_WIDTH), x[:count], y[:count], recipe, **options)
        seconds.append(time.perf_counter() - started)
        ray.shutdown()
    products = 2 * rows * sum(each.numel() for each in deep(NETWORK_WIDTH).parameters())
    products = products // 2 * (1 + DISTANCES + 1)  # one box in the first step, all in the second
    table = Table(title=f"{rows:,} x {NETWORK_WIDTH}, two steps, K = {DISTANCES}, on Ray")
    for name in ("1 worker (s)", "2 workers (s)", "speed-up", "entries per second and worker"):
        table.add_column(name, justify="right")
    one, two = seconds
    table.add_row(f"{one:.1f}", f"{two:.1f}", f"{one / two:.2f}", f"{products / two / 2:.3g}")
    return table


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        run_one(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["network", "head", "engines", "workers"])
    parser.add_argument("--rows", type=int, nargs="+", default=[125_000, 250_000, 500_000])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("out/large-tables"))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.kind == "engines":
        found = compare_engines(Path(os.environ["HOLDFAST_DATA"]), given.rounds)
    elif given.kind == "workers":
        found = compare_workers(given.rows[0])
    else:
        given.folder.mkdir(parents=True, exist_ok=True)
        found = compare(given.kind, given.rows, given.folder)
    Console().print(found)


if __name__ == "__main__":
    main()
