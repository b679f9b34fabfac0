"""Whitening: centre and decorrelate features with the statistics of public rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInput, warn
from ..kernels import ordered_matmul
from ..records import check_features
from ..workers import workers

MAX_SHARED_FRACTION = 0.05
"""The largest share of private rows that may be among the rows that whitening was fitted on."""

_FEW_ROWS = 20
"""Up to so many shared rows, there is only a warning: one record must not decide alone."""


@dataclass(frozen=True, eq=False)
class Whitening:
    """The map x -> clamp((x - mean) @ matrix, -limit, limit), in float64.

    `rows` are hashes of the public rows that it was fitted on, and `norm` is the root mean square
    norm of those rows after whitening; None if the file that it was read from does not tell it.
    """

    mean: Tensor
    matrix: Tensor
    limit: float
    rows: Tensor
    norm: float | None = None

    @classmethod
    def fit(cls, public: Any, shrinkage: float, limit: float) -> Whitening:
        """Fit the inverse square root of the public covariance.

        `shrinkage` times the mean eigenvalue is added to each eigenvalue first.
        """
        for name, value in (("shrinkage", shrinkage), ("limit", limit)):
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 < value < float("inf")
            ):
                raise InvalidInput(f"{name}={value!r}: expected a positive number")
        features = check_features(public, torch.float64, "public x")
        if features.dim() != 2 or len(features) < 2:
            raise InvalidInput(
                f"public x has shape {tuple(features.shape)}: "
                "whitening needs at least two rows of numbers"
            )
        mean = features.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov(features.T).reshape(features.shape[1], -1))
        values = values.clamp(min=0) + shrinkage * values.clamp(min=0).mean()
        if not bool((values > 0).all()):
            raise InvalidInput("public x is constant: whitening needs public rows that differ")
        rows = torch.from_numpy(np.unique(row_hashes(features).numpy()))
        fitted = cls(mean, vectors @ torch.diag(values.rsqrt()) @ vectors.T, float(limit), rows)
        norm = float(fitted.apply(features).square().sum(1).mean().sqrt())
        return replace(fitted, norm=norm)

    def apply(self, features: Tensor) -> Tensor:
        """Whiten each row by itself: the result does not depend on the other rows."""
        if features.dim() != 2 or features.shape[1] != len(self.mean):
            raise InvalidInput(
                f"x has shape {tuple(features.shape)}: "
                f"whitening was fitted on {len(self.mean)} columns"
            )
        with workers() as pool:
            return pool.submit(self._whiten, features).result()

    def _whiten(self, features: Tensor) -> Tensor:
        """Whiten rows, clamped to a public bound below which no sum of products can overflow."""
        largest = max(1.0, float(self.matrix.abs().max()))
        bound = torch.finfo(torch.float64).max / (4.0 * len(self.mean) * largest)
        centred = (features - self.mean).clamp(-bound, bound)
        return ordered_matmul(centred, self.matrix).clamp(-self.limit, self.limit)

    def refuse_private(self, features: Tensor) -> None:
        """Raise if more than MAX_SHARED_FRACTION of the private rows are among the fitted rows."""
        self.refuse_share(self.count_shared(features), len(features))

    def count_shared(self, features: Tensor) -> int:
        """Return how many rows are among those that whitening was fitted on."""
        return int(np.isin(row_hashes(features).numpy(), self.rows.numpy()).sum())

    def refuse_share(self, shared: int, count: int) -> None:
        """Raise if more than MAX_SHARED_FRACTION of all private rows are among the fitted rows.

        If these are fewer than 20 rows, warn instead.
        """
        share = shared / count if count else 0.0
        if share <= MAX_SHARED_FRACTION:
            return
        text = (
            f"{share:.1%} of the private rows are among the rows that whitening was fitted on "
            f"(at most {MAX_SHARED_FRACTION:.0%}): statistics of the private table are not "
            "public; fit whitening on other data. In a table with few values rows may also be "
            "equal by chance: then use ranges alone"
        )
        if shared >= _FEW_ROWS:
            raise InvalidInput(text)
        warn(f"NOT private: {text}")


def row_hashes(features: Tensor) -> Tensor:
    """Return a hash of each row's float32 values, so that copies in other dtypes are recognised."""
    rows = (features.float() + 0.0).numpy()
    hashes = [
        int.from_bytes(
            hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little", signed=True
        )
        for row in rows
    ]
    return torch.tensor(hashes, dtype=torch.int64)
