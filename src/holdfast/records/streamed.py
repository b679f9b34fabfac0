"""StreamedRecords: records of a table larger than memory, on disk while training runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .records import Block, row_ranges
from .spool import Spool


@dataclass(frozen=True, eq=False)
class StreamedRecords:
    """Records whose features are in a spool, sorted by batch; labels and limits are in memory."""

    features: Spool
    shape: tuple[int, ...]  # of the features of one record
    labels: Tensor
    starts: tuple[int, ...]
    limits: Tensor | None = None

    @classmethod
    def of(
        cls,
        features: Spool,
        shape: tuple[int, ...],
        labels: NDArray[np.int64],
        batch: NDArray[np.int64] | None,
        batches: int,
        limits: NDArray[np.int64] | None,
    ) -> StreamedRecords:
        """Return records with the batch that each belongs to; None: there is one batch."""
        starts: tuple[int, ...] = (0, len(labels))
        if batch is not None:
            order = batch.argsort(kind="stable")
            starts = (0, *np.bincount(batch, minlength=batches).cumsum().tolist())
            unsorted, features, labels = features, features.gathered(order), labels[order]
            unsorted.close()
            limits = None if limits is None else limits[order]
        known = None if limits is None else torch.from_numpy(limits)
        return cls(features, shape, torch.from_numpy(labels), starts, known)

    def count(self, batch: int) -> int:
        return self.starts[batch + 1] - self.starts[batch]

    def blocks(
        self, batch: int, rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[Block]:
        for low, high in row_ranges(self.starts[batch : batch + 2], rows, first, last):
            features = torch.from_numpy(self.features.read(low, high))
            limits = None if self.limits is None else self.limits[low:high]
            yield Block(features.reshape(-1, *self.shape), self.labels[low:high], limits)
