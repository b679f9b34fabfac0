"""Records: private data, checked and read in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """Some records of one batch.

    `limits` are the bounds on the entries of each record's gradient, in whole units; None if a
    record is all that its owner has, and the bound is the clip.
    """

    features: Tensor
    labels: Tensor
    limits: Tensor | None = None


@runtime_checkable
class Source(Protocol):
    """A source of records, read in blocks: in memory, on disk, or shared with other processes."""

    def count(self, batch: int) -> int:
        """Return how many records the batch has."""

    def blocks(
        self, batch: int, rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[Block]:
        """Yield the batch's records first..last-1, by default all, in blocks of at most `rows`.

        Records may come in any order because their sums are exact.
        """


@dataclass(frozen=True, eq=False)
class Records:
    """Records held in memory."""

    features: Tensor
    labels: Tensor
    order: Tensor | None  # row numbers sorted by batch; None if there is one batch
    starts: tuple[int, ...]  # where each batch begins in that order, and where the last one ends
    limits: Tensor | None = None

    @classmethod
    def of(
        cls,
        features: Tensor,
        labels: Tensor,
        batch: Tensor | None = None,
        batches: int = 1,
        limits: Tensor | None = None,
    ) -> Records:
        """Return records with the batch that each belongs to (by default, all in batch 0)."""
        if batch is None:
            return cls(features, labels, None, (0, len(labels)), limits)
        sizes = torch.bincount(batch, minlength=batches)
        starts = (0, *sizes.cumsum(0).tolist())
        return cls(features, labels, batch.argsort(stable=True), starts, limits)

    def count(self, batch: int) -> int:
        return self.starts[batch + 1] - self.starts[batch]

    def blocks(
        self, batch: int, rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[Block]:
        for low, high in row_ranges(self.starts[batch : batch + 2], rows, first, last):
            chosen = slice(low, high) if self.order is None else self.order[low:high]
            limits = None if self.limits is None else self.limits[chosen]
            yield Block(self.features[chosen], self.labels[chosen], limits)


def row_ranges(
    batch: tuple[int, ...], rows: int, first: int, last: int | None
) -> Iterator[tuple[int, int]]:
    """Yield ranges of at most `rows` rows that make up the rows first..last-1 of a batch.

    Args:
        batch: Where the batch begins and ends.
        rows: The most rows of a range.
        first: The first row, counted from the beginning of the batch.
        last: The end, counted likewise; None is the end of the batch.
    """
    start, end = batch
    end = end if last is None else min(end, start + last)
    for low in range(start + first, end, rows):
        yield low, min(low + rows, end)
