"""Benchmark of privacy per person: training time in units of training per record, in the same run.

The records are the same; per person, every three of them belong to one person.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import holdfast as hf

ROWS, WIDTH, PER_PERSON = 24_000, 384, 3


def make_records() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (ROWS,), generator=generator)
    return torch.randn(ROWS, WIDTH, generator=generator) + 0.3 * (2 * y[:, None] - 1), y


def train_network(x: torch.Tensor, y: torch.Tensor, count: int, owners: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 100), nn.ReLU(), nn.Linear(100, 1))
    recipe = hf.Recipe(epochs=2, clip=0.04, batch_size=count, loss="binary_cross_entropy")
    hf.train(model, x, y, recipe, max_distance=3, progress=False, **owners)


def train_head(x: torch.Tensor, y: torch.Tensor, count: int, owners: dict[str, Any]) -> None:
    recipe = hf.LinearRecipe(batch_size=count, travel=300.0, clip=0.6)
    hf.train_linear(x, y, recipe, classes=2, progress=False, **owners)


def compare(rounds: int) -> Table:
    table = Table(title=f"{ROWS:,} records, {WIDTH} features, {PER_PERSON} records per person")
    for column in ("", "per record (s)", "per person (s)", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    x, y = make_records()
    persons = [row // PER_PERSON for row in range(ROWS)]
    kinds: dict[str, Callable[..., None]] = {"network, boxes": train_network, "head": train_head}
    for name, train in kinds.items():
        seconds: dict[str, list[float]] = {"record": [], "person": []}
        train(x[:300], y[:300], 100, {"persons": persons[:300]})  # compiles the loops
        for _ in range(rounds):
            for unit, count, owners in (
                ("record", ROWS, {"ids": range(ROWS)}),
                ("person", ROWS // PER_PERSON, {"persons": persons}),
            ):
                started = time.perf_counter()
                train(x, y, count, owners)
                seconds[unit].append(time.perf_counter() - started)
        record, person = min(seconds["record"]), min(seconds["person"])
        table.add_row(name, f"{record:.2f}", f"{person:.2f}", f"{person / record:.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    Console().print(compare(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
