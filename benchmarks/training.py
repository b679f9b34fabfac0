"""Benchmark of training: the cost per distance in units of plain training, in the same run.

The unit is three full-batch steps of torch.optim.SGD with autograd on the same model and records,
without clipping or bounds. Prints the units per additional distance under add_remove and replace,
the peak memory above the data, and how the cost grows with the number of distances and of records.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import holdfast as hf

WIDTH, HIDDEN, STEPS = 768, 100, 3
RECIPE = {
    "epochs": STEPS,
    "learning_rate": 0.2,
    "decay": 0.5,
    "clip": 0.04,
    "loss": "binary_cross_entropy",
}


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))


def records(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, WIDTH, generator=generator), torch.randint(
        0, 2, (rows,), generator=generator
    )


def time_plain_training(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the seconds that plain training takes."""
    net, targets = model(), y.float()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.2)
    start = time.perf_counter()
    for _ in range(STEPS):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(net(x)[:, 0], targets).backward()
        optimiser.step()
    return time.perf_counter() - start


def time_certified_training(
    x: torch.Tensor, y: torch.Tensor, relation: str, distances: list[int]
) -> float:
    """Return the seconds that certified training takes."""
    recipe = hf.Recipe(**RECIPE, batch_size=len(y))
    start = time.perf_counter()
    hf.train(model(), x, y, recipe, neighbours=relation, distances=distances, progress=False)
    return time.perf_counter() - start


def units_per_distance(
    x: torch.Tensor, y: torch.Tensor, relation: str, first: int, more: int, rounds: int
) -> tuple[float, float]:
    """Return the units per additional distance, and the unit in seconds.

    Each time is the best of several rounds; plain and certified training are interleaved.
    """
    time_plain_training(x, y)
    time_certified_training(x[:64], y[:64], relation, [first])  # compile the loops
    unit = few = many = float("inf")
    for _ in range(rounds):
        unit = min(unit, *(time_plain_training(x, y) for _ in range(3)))
        few = min(few, time_certified_training(x, y, relation, [first]))
        many = min(
            many, time_certified_training(x, y, relation, list(range(first, first + 1 + more)))
        )
    return (many - few) / more / unit, unit


def peak_memory_during(work: Callable[[], object]) -> float:
    """Return the largest increase of the resident memory while `work` runs, in MiB (Linux only)."""

    def read(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(field)))

    Path("/proc/self/clear_refs").write_text("5")  # reset the recorded peak
    before = read("VmRSS")
    work()
    return (read("VmHWM") - before) / 1024


def peak_memory(relation: str, distance: int, rows: int) -> float:
    """Return the peak memory above that of the data, in MiB, measured in a separate process."""
    script = (
        "import benchmarks.training as b\n"
        f"x, y = b.records({rows})\n"
        f"def train(x, y): b.time_certified_training(x, y, {relation!r}, [{distance}])\n"
        "train(x[:64], y[:64])\n"
        "print(b.peak_memory_during(lambda: train(x, y)))\n"
    )
    return float(
        subprocess.run(
            [sys.executable, "-c", script], check=True, capture_output=True, text=True
        ).stdout
    )


def growth_table(relation: str, unit_rows: int, quick: bool) -> Table:
    """Tabulate the seconds and units against K and against the number of records."""
    table = Table(title="growth (add_remove)")
    for column in ("records", "K", "seconds", "unit (s)", "units per k"):
        table.add_column(column, justify="right")
    sizes = [(unit_rows, k) for k in ((1, 10) if quick else (1, 10, 100))]
    sizes += [(rows, 4) for rows in ((9_000,) if quick else (9_000, 36_000, 144_000))]
    for rows, most in sizes:
        x, y = records(rows)
        unit = min(time_plain_training(x, y) for _ in range(2))
        seconds = time_certified_training(x, y, relation, list(range(1, most + 1)))
        table.add_row(
            f"{rows:,}",
            str(most),
            f"{seconds:.2f}",
            f"{unit:.3f}",
            f"{seconds / (most + 1) / unit:.2f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=36_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="leave out the largest runs")
    options = parser.parse_args()
    torch.set_num_threads(2)
    console = Console()
    x, y = records(options.rows)
    table = Table(
        title=(
            f"{options.rows:,} x {WIDTH} records, {WIDTH}-{HIDDEN}-1 ReLU, {STEPS} full-batch "
            "steps, 2 threads"
        )
    )
    for column in (
        "relation",
        "k",
        "units per additional k",
        "at most",
        "unit (s)",
        "peak memory above the data",
    ):
        table.add_column(column, justify="right")
    for relation, first, more, most in (("add_remove", 1, 5, 4), ("replace", 50, 3, 12)):
        units, unit = units_per_distance(x, y, relation, first, more, options.rounds)
        memory = peak_memory(relation, first, options.rows)
        table.add_row(
            relation, str(first), f"{units:.2f}", str(most), f"{unit:.3f}", f"{memory:.0f} MiB"
        )
    console.print(table)
    console.print(growth_table("add_remove", options.rows, options.quick))


if __name__ == "__main__":
    main()
