"""Records as heads see them, from plain arrays."""

from __future__ import annotations

import numpy as np
import torch

from holdfast.arrays import Floats, Integers
from holdfast.heads.descent import HeadBlocks, cut_into_blocks
from holdfast.records import MemoryRows


def head_blocks(
    features: Floats,
    norms: Floats,
    shares: Floats,
    offsets: Floats,
    labels: Integers,
    batch: Integers,
    keys: Integers,
    batches: int,
) -> HeadBlocks:
    """Sort and cut records as training does."""
    order = np.lexsort((keys, labels, batch))
    starts = (0, *np.bincount(batch, minlength=batches).cumsum().tolist())
    blocks, block_starts = cut_into_blocks(starts, labels[order])
    columns = [features[order[start:end]].T.reshape(-1, 1) for start, end, _ in blocks.tolist()]
    store = MemoryRows.of(torch.from_numpy(np.concatenate(columns)))
    return HeadBlocks(
        store, features.shape[1], norms[order], shares[order],
        np.ascontiguousarray(offsets[order]), offsets.shape[1], blocks, block_starts,
    )  # fmt: skip
