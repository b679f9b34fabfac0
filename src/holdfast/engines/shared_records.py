"""SharedRecords: records in pieces that tasks read wherever they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..records import SPOOL_ROWS, Block, Source
from .engine import Engine, Handle

Piece = tuple[Any, Any, Any]  # arrays of features, labels and limits; or None


@dataclass(frozen=True)
class SharedRecords:
    """Records of another source, shared through an engine in pieces of SPOOL_ROWS."""

    pieces: tuple[tuple[Handle[Piece], ...], ...]  # per batch
    counts: tuple[int, ...]

    @classmethod
    def of(cls, source: Source, batches: int, engine: Engine) -> SharedRecords:
        """Share the records of a source."""
        pieces = []
        for batch in range(batches):
            blocks = source.blocks(batch, SPOOL_ROWS)
            pieces.append(tuple(engine.share(_piece(block)) for block in blocks))
        return cls(tuple(pieces), tuple(source.count(batch) for batch in range(batches)))

    def count(self, batch: int) -> int:
        return self.counts[batch]

    def blocks(
        self, batch: int, rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[Block]:
        end = self.counts[batch] if last is None else min(last, self.counts[batch])
        while first < end:
            number, low = divmod(first, SPOOL_ROWS)
            high = min(SPOOL_ROWS, low + end - first)
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
