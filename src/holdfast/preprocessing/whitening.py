"""Whitening: centre and decorrelate features with statistics of public data, so that one step points where many would."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInput
from ..kernels import ordered_matmul
from ..records import check_features
from ..workers import workers

MOST_SHARED = 0.05
"""The share of private rows that may also be among the rows that whitening was fitted on."""


@dataclass(frozen=True, eq=False)
class Whitening:
    """x -> clamp((x - mean) @ matrix, -limit, limit), in float64; `rows` are hashes of the public rows it was fitted on."""

    mean: Tensor
    matrix: Tensor
    limit: float
    rows: Tensor

    @classmethod
    def fit(cls, public: Any, shrinkage: float, limit: float) -> Whitening:
        """The inverse square root of the public covariance, with `shrinkage` times its mean eigenvalue added to each."""
        for name, value in (("shrinkage", shrinkage), ("limit", limit)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise InvalidInput(f"{name}={value!r}: expected a positive number")
        features = check_features(public, torch.float64, "public x")
        if features.dim() != 2 or len(features) < 2:
            raise InvalidInput(f"public x has shape {tuple(features.shape)}: whitening needs at least two rows of numbers")
        mean = features.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov(features.T).reshape(features.shape[1], -1))
        values = values.clamp(min=0) + shrinkage * values.clamp(min=0).mean()
        if not bool((values > 0).all()):
            raise InvalidInput("public x is constant: there is nothing to whiten by")
        return cls(
            mean,
            vectors @ torch.diag(values.rsqrt()) @ vectors.T,
            float(limit),
            torch.from_numpy(np.unique(fingerprints(features).numpy())),
        )

    def apply(self, features: Tensor) -> Tensor:
        """Each row by itself: the same numbers whatever rows come with it."""
        if features.dim() != 2 or features.shape[1] != len(self.mean):
            raise InvalidInput(f"x has shape {tuple(features.shape)}: whitening was fitted on {len(self.mean)} columns")
        with workers() as pool:
            return pool.submit(self._whitened, features).result()

    def _whitened(self, features: Tensor) -> Tensor:
        """Rows beyond any sensible size are cut at a public bound, below which no sum of products can overflow."""
        largest = max(1.0, float(self.matrix.abs().max()))
        bound = torch.finfo(torch.float64).max / (4.0 * len(self.mean) * largest)
        centred = (features - self.mean).clamp(-bound, bound)
        return ordered_matmul(centred, self.matrix).clamp(-self.limit, self.limit)

    def refuse_private(self, features: Tensor) -> None:
        """Raise where more than MOST_SHARED of the private rows are among those that whitening was fitted on."""
        shared = np.isin(fingerprints(features).numpy(), self.rows.numpy())
        share = float(shared.mean()) if len(shared) else 0.0
        if share > MOST_SHARED:
            raise InvalidInput(
                f"{share:.1%} of the private rows are among the rows that whitening was fitted on (at most {MOST_SHARED:.0%}): "
                "statistics of the private table are not public; fit whitening on other data, or use ranges"
            )


def fingerprints(features: Tensor) -> Tensor:
    """A hash of each row, of its values as float32, so that a copy in another type is known."""
    rows = (features.float() + 0.0).numpy()
    hashes = [int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little", signed=True) for row in rows]
    return torch.tensor(hashes, dtype=torch.int64)
