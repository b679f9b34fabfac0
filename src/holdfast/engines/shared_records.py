"""SharedRecords: records in pieces that tasks read wherever they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..records import Block, Source, part_rows
from .engine import Engine, Handle

Piece = tuple[Any, Any, Any]  # arrays of features, labels and limits; or None


@dataclass(frozen=True)
class SharedRecords:
    """Records of another source, shared through an engine in pieces of some rows."""

    pieces: tuple[tuple[Handle[Piece], ...], ...]  # per batch
    counts: tuple[int, ...]
    rows: int  # of a piece

    @classmethod
    def of(cls, source: Source, batches: int, engine: Engine) -> SharedRecords:
        """Share the records of a source."""
        counts = tuple(source.count(batch) for batch in range(batches))
        filled = (batch for batch in range(batches) if counts[batch])
        first = next((next(source.blocks(batch, 1)).features for batch in filled), None)
        rows = part_rows(0 if first is None else first.nbytes)
        pieces = []
        for batch in range(batches):
            blocks = source.blocks(batch, rows)
            pieces.append(tuple(engine.share(_piece(block)) for block in blocks))
        return cls(tuple(pieces), counts, rows)

    def count(self, batch: int) -> int:
        return self.counts[batch]

    def blocks(
        self, batch: int, rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[Block]:
        end = self.counts[batch] if last is None else min(last, self.counts[batch])
        while first < end:
            number, low = divmod(first, self.rows)
            high = min(self.rows, low + end - first)
            piece = self.pieces[batch][number].get()
            for start in range(low, high, rows):
                chosen = slice(start, min(start + rows, high))
                features, labels, limits = (_copied(part, chosen) for part in piece)
                assert features is not None
                assert labels is not None
                yield Block(features, labels, limits)
            first += high - low


def _piece(block: Block) -> Piece:
    limits = None if block.limits is None else block.limits.numpy()
    return block.features.numpy(), block.labels.numpy(), limits


def _copied(part: Any, rows: slice) -> Tensor | None:
    """Return some rows; they are copied because shared memory is not aligned and not writable."""
    return None if part is None else torch.from_numpy(np.array(part[rows]))
