"""Task: the one shape in which every data set of the experiments comes, with splits that are fixed and public."""

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
    """Private records, queries with their right answers, and what is public beside them."""

    name: str
    source: str  # what was read, and what it stands for
    x: Tensor  # the private records
    y: Tensor
    query_x: Tensor
    query_y: Tensor
    public_x: Tensor  # public records, for whitening and pre-training
    tune_x: Tensor  # public records whose labels are known, for choosing settings
    tune_y: Tensor
    public_y: Tensor | None = None
    query_groups: Tensor | None = None  # a finer class of each query, to report by

    @cached_property
    def digest(self) -> str:
        """Of all its numbers: two tasks with the same digest give the same results."""
        return digest("task", self.name, self._tensors())

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def with_features(self, of: Callable[[Tensor], Tensor]) -> Task:
        """The same task with other features, by a public rule for each row."""
        return replace(self, x=of(self.x), query_x=of(self.query_x), public_x=of(self.public_x), tune_x=of(self.tune_x))

    def small(self, records: int, queries: int) -> Task:
        """A small version, by a fixed lot: for quick runs. No results worth reporting come of it."""
        cut = {"": records, "query_": queries, "public_": records, "tune_": records}
        chosen = {}
        for part, most in cut.items():
            count = len(getattr(self, f"{part}x"))
            rows = torch.from_numpy(np.random.default_rng(0).permutation(count)[:most].copy())
            for field in (f"{part}x", f"{part}y", f"{part}groups"):
                if isinstance(vars(self).get(field), Tensor):
                    chosen[field] = vars(self)[field][rows]
        return replace(self, source=f"{self.source} (a small part of it)", **chosen)


def floats(values: Any) -> Tensor:
    """An array as float32."""
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def labels(values: Any) -> Tensor:
    """An array of labels, whatever its shape, as one int64 each."""
    return torch.from_numpy(np.ascontiguousarray(values).reshape(-1).astype(np.int64))
