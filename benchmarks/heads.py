"""Benchmark of heads: training and certifying against plain torch, in the same run.

The baseline of training takes the same number of full-batch steps with torch's SGD on the logistic
loss of the same features, in float64; ours also clips every record's gradient and gives all
distances. The baseline of a query is the plain prediction of one query by a torch module.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import holdfast as hf
from holdfast.heads.ball import Schedule
from holdfast.heads.certified import CertifiedHead

from .queries import best_time

CASES = ((25_000, 384), (30_000, 33), (200_000, 26))


def make_records(rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (rows,), generator=generator)
    x = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return x + 0.3 * (2 * y[:, None] - 1), y


def train_plain(features: np.ndarray, y: torch.Tensor, schedule: Schedule) -> float:
    """Return the seconds that torch takes for the steps of a schedule."""
    x, target = torch.from_numpy(features), y.double()
    model = nn.Linear(x.shape[1], 1, bias=False).double()
    optimiser = torch.optim.SGD(model.parameters(), schedule.size)
    started = time.perf_counter()
    for _ in range(schedule.count):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], target).backward()
        optimiser.step()
    return time.perf_counter() - started


def training(rounds: int) -> Table:
    table = Table(title="training of a head, and all distances")
    for column in ("records", "features", "steps", "ours (s)", "torch (s)", "units"):
        table.add_column(column, justify="right")
    for rows, width in CASES:
        x, y = make_records(rows, width)
        recipe = hf.LinearRecipe(batch_size=rows, travel=300.0, clip=0.6)
        ids = range(rows)
        settings = {"classes": 2, "ids": ids, "progress": False}
        head = hf.train_linear(x, y, hf.LinearRecipe(batch_size=rows, travel=1.0), **settings)
        ours, theirs = [], []
        for _ in range(rounds):
            started = time.perf_counter()
            head = hf.train_linear(x, y, recipe, **settings)
            ours.append(time.perf_counter() - started)
            assert isinstance(head, CertifiedHead)
            schedule = Schedule.of(recipe, head.scheme.loss(recipe).curvature)
            features, _, _ = head.inputs(x, head.scheme)
            theirs.append(train_plain(features, y, schedule))
        mine, plain = min(ours), min(theirs)
        table.add_row(
            f"{rows:,}",
            f"{width}",
            f"{schedule.count}",
            f"{mine:.2f}",
            f"{plain:.2f}",
            f"{mine / plain:.2f}",
        )
    return table


def queries() -> Table:
    table = Table(title="one query")
    for column in ("features", "ours (µs)", "torch (µs)", "ratio"):
        table.add_column(column, justify="right")
    for width in (26, 384):
        x, y = make_records(2000, width)
        recipe = hf.LinearRecipe(batch_size=2000, travel=30.0)
        head = hf.train_linear(x, y, recipe, classes=2, progress=False)
        plain = nn.Linear(width, 1).double()
        query = x[:1].clone()
        with torch.inference_mode():
            mine, _ = best_time(lambda h=head, q=query: h.certify(q).distances, 2000)
            theirs, _ = best_time(lambda m=plain, q=query: m(q)[:, 0] > 0, 2000)
        table.add_row(
            f"{width}", f"{1e6 * mine:.0f}", f"{1e6 * theirs:.1f}", f"{mine / theirs:.1f}"
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    console = Console()
    console.print(training(options.rounds))
    console.print(queries())


if __name__ == "__main__":
    main()
