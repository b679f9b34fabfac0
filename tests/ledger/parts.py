"""Helpers shared by the ledger tests: a small model and queries for it."""

from __future__ import annotations

from pathlib import Path

import torch

import holdfast as hf

NAME = "ward-7"


def small_model(dataset: str = NAME, max_distance: int = 1, **settings: object) -> hf.Certified:
    """Train a linear model on two Gaussian clouds."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (60,), generator=generator)
    x = torch.randn(60, 2, generator=generator) + 2.0 * (2 * y[:, None] - 1)
    torch.manual_seed(1)
    recipe = hf.Recipe(learning_rate=1.0, clip=0.1, batch_size=60)
    return hf.train(
        torch.nn.Sequential(torch.nn.Linear(2, 2)),
        x,
        y,
        recipe,
        max_distance=max_distance,
        dataset=dataset,
        progress=False,
        **settings,
    )


def query(number: int) -> torch.Tensor:
    """Return a query that is different for every number."""
    return torch.tensor([0.01 * number, 1.0])


def sqlite_at(folder: Path) -> str:
    return f"sqlite:///{folder}/ledger.db"
