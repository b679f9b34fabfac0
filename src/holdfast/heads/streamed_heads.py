"""Head records on disk: sorted once, then read in windows of blocks in every step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..arrays import Floats, Integers
from ..records import Spool
from .descent import HeadRecords, count_owners, cut_into_blocks, window_blocks
from .head_inputs import HeadInputs
from .multiclass import Scheme


@dataclass(frozen=True, eq=False)
class StreamedHeadRecords:
    """Records as heads see them, with the features on disk; see `HeadRecords` for the order.

    `columns` holds the features, block by block and feature by feature within a block; `offsets` is
    None if all of them are 0.
    """

    columns: Spool
    width: int
    norms: Floats
    shares: Floats
    offsets: Floats | None
    heads: int
    blocks: Integers
    starts: tuple[int, ...]

    @classmethod
    def arrange(
        cls,
        records: Spool,
        chosen: Integers,
        labels: Integers,
        batch: Integers,
        hashes: Integers,
        shares: Floats,
        batches: int,
        inputs: HeadInputs,
        scheme: Scheme,
    ) -> StreamedHeadRecords:
        """Sort the chosen rows as `HeadRecords.arrange` does, and write their features to disk.

        The other arguments hold one number for each chosen row.
        """
        order = np.lexsort((hashes, labels, batch))
        blocks, starts = cut_into_blocks(batch[order], labels[order], batches)
        chosen_rows = records.gathered(chosen[order])
        columns, norms = Spool(1, np.float64), np.empty(len(order))
        offsets = None if inputs.offset is None else np.empty((len(order), scheme.heads))
        step = window_blocks(max(records.width, inputs.width))
        for number in range(0, len(blocks), step):
            window = blocks[number : number + step]
            low, high = int(window[0, 0]), int(window[-1, 1])
            rows = torch.from_numpy(chosen_rows.read(low, high))
            shaped = rows.reshape(-1, *inputs.record_shape)
            features, norms[low:high], found = inputs(shaped, scheme)
            if offsets is not None:
                offsets[low:high] = found
            for start, end, _ in window.tolist():
                columns.append(features[start - low : end - low].T.reshape(-1, 1))
        chosen_rows.close()
        return cls(
            columns, inputs.width, norms, shares[order], offsets, scheme.heads, blocks, starts
        )

    def counts(self, batch: int, scheme: Scheme) -> list[float]:
        """Return how many owners of a batch's records train each head."""
        blocks = self.blocks[self.starts[batch] : self.starts[batch + 1]]
        return count_owners(blocks, self.shares, scheme)

    def window(self, first: int, last: int) -> HeadRecords:
        """Return the records of blocks first..last-1, read from disk."""
        low, high = int(self.blocks[first, 0]), int(self.blocks[last - 1, 1])
        columns = self.columns.read(low * self.width, high * self.width).reshape(-1)
        offsets = self.offsets
        return HeadRecords(
            columns,
            self.width,
            self.norms[low:high],
            self.shares[low:high],
            np.zeros((high - low, self.heads)) if offsets is None else offsets[low:high],
            self.blocks[first:last] - np.array([low, low, 0]),
            (0, last - first),
        )
