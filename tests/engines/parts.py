"""A table in memory and in files, and the comparison of two models to the bit."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet
from torch import nn

import holdfast as hf

WIDTH = 6


def make_records(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return records with features of very different sizes, so that sums are rounded."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, WIDTH, generator=generator)
    x *= 10.0 ** torch.randint(-3, 2, (count, 1), generator=generator)
    return x, (x[:, 0] + 0.3 * torch.randn(count, generator=generator) > 0).long()


def write_files(
    folder: Path, x: torch.Tensor, y: Any, files: int = 3, **columns: Any
) -> dict[str, Any]:
    """Write records to several Parquet files of different lengths; return all columns."""
    table = {f"f{number}": x[:, number].numpy() for number in range(x.shape[1])}
    table |= {name: np.asarray(cells) for name, cells in columns.items()} | {"y": np.asarray(y)}
    whole = pa.table(table)
    ends = [len(x) * part**2 // files**2 for part in range(files + 1)]
    folder.mkdir(exist_ok=True)
    for part, (first, last) in enumerate(pairwise(ends)):
        parquet.write_table(whole.slice(first, last - first), folder / f"part-{part}.parquet")
    return table


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 2))


def require_same_bits(left: Any, right: Any) -> None:
    """Fail unless two models are the same to the bit: weights, boxes and normaliser."""
    assert len(left.members) == len(right.members)
    assert left.recipe == right.recipe
    for one, other in zip(left.members, right.members, strict=True):
        if isinstance(one, hf.Certified):
            assert one.distances == other.distances
            for k in (0, *one.distances):
                boxes, others = one.bounds(k), other.bounds(k)
                for name, lower in boxes.lower.items():
                    assert torch.equal(lower, others.lower[name]), (k, name)
                    assert torch.equal(boxes.upper[name], others.upper[name]), (k, name)
        else:
            assert torch.equal(one.weights, other.weights)
