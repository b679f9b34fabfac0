"""Task, the form in which every data set of the experiments comes; and the paper's synthetic blobs.

The splits of a task are fixed and public. Blobs are two Gaussian clouds, with cubic features so
that the decision boundary may bend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..files import digest


@dataclass(frozen=True, eq=False)
class Task:
    """Private records, queries with their right answers, and public records."""

    name: str
    source: str  # what was read, and what it represents
    x: Tensor  # the private records
    y: Tensor
    query_x: Tensor
    query_y: Tensor
    public_x: Tensor  # public records, for whitening and pre-training
    tune_x: Tensor  # public records whose labels are known, for choosing settings
    tune_y: Tensor
    public_y: Tensor | None = None
    query_groups: Tensor | None = None  # a finer class per query, for reports
    persons: Tensor | None = None  # the owner of each private record

    @cached_property
    def digest(self) -> str:
        """The digest of the name and all tensors; equal digests mean equal results."""
        return digest("task", self.name, self._tensors())

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def with_features(self, of: Callable[[Tensor], Tensor]) -> Task:
        """Return the same task with other features, computed by a public rule for each row."""
        return replace(
            self,
            x=of(self.x),
            query_x=of(self.query_x),
            public_x=of(self.public_x),
            tune_x=of(self.tune_x),
        )

    def subsample(self, records: int, queries: int) -> Task:
        """Return a small, fixed random sample, for quick runs whose results are not reported."""
        cut = {"": records, "query_": queries, "public_": records, "tune_": records}
        chosen = {}
        for part, most in cut.items():
            count = len(getattr(self, f"{part}x"))
            rows = torch.from_numpy(np.random.default_rng(0).permutation(count)[:most].copy())
            for field in (f"{part}x", f"{part}y", f"{part}groups", f"{part}persons"):
                if isinstance(vars(self).get(field), Tensor):
                    chosen[field] = vars(self)[field][rows]
        return replace(self, source=f"{self.source} (a small part of it)", **chosen)


def floats(values: Any) -> Tensor:
    """Return an array as a float32 tensor."""
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def labels(values: Any) -> Tensor:
    """Return an array of labels, of any shape, as a flat int64 tensor."""
    return torch.from_numpy(np.ascontiguousarray(values).reshape(-1).astype(np.int64))


# The coordinate c of the centres (c, c) and (-c, -c), and the standard deviation.
_SETTINGS = {"far": (1.25, 0.35), "close": (1.0, 0.75)}


def blobs(name: str = "close", records: int = 3750) -> Task:
    """Return the task with the "far" or the "close" blobs.

    `records` points are drawn with seed 0; four fifths of them are the private records, the others
    the queries. As many points again, drawn with seed 1, are public.
    """
    from sklearn.model_selection import train_test_split

    x, y = _draw(name, records, seed=0)
    x, query_x, y, query_y = train_test_split(x, y, test_size=0.2, random_state=0)
    public_x, tune_x, _, tune_y = train_test_split(
        *_draw(name, records, seed=1), test_size=0.2, random_state=0
    )
    parts = [features(torch.from_numpy(part)) for part in (x, query_x, public_x, tune_x)]
    return Task(
        name=f"blobs-{name}",
        source=f"{name} blobs: two Gaussian clouds",
        x=parts[0],
        y=labels(y),
        query_x=parts[1],
        query_y=labels(query_y),
        public_x=parts[2],
        tune_x=parts[3],
        tune_y=labels(tune_y),
    )


def _draw(name: str, records: int, seed: int) -> tuple[object, object]:
    from sklearn.datasets import make_blobs

    centre, spread = _SETTINGS[name]
    centres = [[centre, centre], [-centre, -centre]]
    drawn: tuple[object, object] = make_blobs(
        records, centers=centres, cluster_std=[spread, spread], random_state=seed
    )
    return drawn


def features(points: Tensor) -> Tensor:
    """Return the features (x, x^2, x^3) of points in the plane, in float32."""
    return torch.cat([points, points**2, points**3], dim=1).float()
