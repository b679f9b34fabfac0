"""Descent: train linear heads by full sums over records in blocks, in the order of hashed ids."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Protocol

import numpy as np
import torch

from ..arrays import Floats, Integers
from ..engines import Engine, Handle, Task
from ..errors import UnsoundBounds
from ..records import Spool
from ..workers import ProgressCallback
from .ball import Schedule, inverse_normaliser
from .loops import BLOCK_RECORDS, sum_blocks
from .recipe import LinearRecipe
from .schemes import HeadInputs, Scheme

_SMALL = 200_000  # products per step below which a second thread costs more than it saves
_WINDOW_BYTES = 2**26


def window_blocks(width: int) -> int:
    """Return the most blocks that a task reads, and that are in memory at a time if on disk.

    Args:
        width: The number of features.
    """
    return max(1, min(64, _WINDOW_BYTES // (8 * width * BLOCK_RECORDS)))


@dataclass(frozen=True, eq=False)
class HeadRecords:
    """Records as heads see them, sorted by batch, class and hashed id, and cut into blocks.

    `blocks` holds the first row, the end and the class of each block; batch number i has the blocks
    starts[i]..starts[i + 1]-1. `columns` holds the features block by block, and feature by feature
    within a block. The shares of an owner's records add up to 1.
    """

    columns: Floats
    width: int  # number of features
    norms: Floats
    shares: Floats
    offsets: Floats
    blocks: Integers
    starts: tuple[int, ...]

    @classmethod
    def arrange(
        cls,
        features: Floats,
        norms: Floats,
        shares: Floats,
        offsets: Floats,
        labels: Integers,
        batch: Integers,
        hashes: Integers,
        batches: int,
    ) -> HeadRecords:
        """Sort and cut records into blocks of at most BLOCK_RECORDS.

        Guarantees:
            The result does not depend on the order in which the records are given, provided that
            records with equal hashes are equal.
        """
        order = np.lexsort((hashes, labels, batch))
        blocks, starts = cut_into_blocks(batch[order], labels[order], batches)
        width = features.shape[1]
        columns = np.empty(features.size)
        for start, end, _ in blocks.tolist():
            rows = features[order[start:end]]
            columns[start * width : end * width].reshape(width, end - start)[:] = rows.T
        return cls(
            columns,
            width,
            norms[order],
            shares[order],
            np.ascontiguousarray(offsets[order]),
            blocks,
            starts,
        )

    def counts(self, batch: int, scheme: Scheme) -> list[float]:
        """Return how many owners of a batch's records train each head: the sum of their shares."""
        blocks = self.blocks[self.starts[batch] : self.starts[batch + 1]]
        return count_owners(blocks, self.shares, scheme)

    def window(self, first: int, last: int) -> HeadRecords:
        """Return the records of blocks first..last-1."""
        low, high = int(self.blocks[first, 0]), int(self.blocks[last - 1, 1])
        return HeadRecords(
            self.columns[low * self.width : high * self.width],
            self.width,
            self.norms[low:high],
            self.shares[low:high],
            self.offsets[low:high],
            self.blocks[first:last] - np.array([low, low, 0]),
            (0, last - first),
        )


def cut_into_blocks(
    batch: Integers, labels: Integers, batches: int
) -> tuple[Integers, tuple[int, ...]]:
    """Cut sorted records into blocks of one batch and class, of at most BLOCK_RECORDS.

    Returns:
        The first row, the end and the class of each block; and where the blocks of each batch
        begin, and those of the last one end.
    """
    edges = np.flatnonzero((np.diff(batch) != 0) | (np.diff(labels) != 0)) + 1
    blocks: list[tuple[int, int, int]] = []
    starts = [0]
    for number in range(batches):
        low, high = np.searchsorted(batch, (number, number + 1))
        inner = edges[(edges > low) & (edges < high)].tolist()
        for start, end in zip([low, *inner], [*inner, high], strict=True):
            blocks += [
                (first, min(first + BLOCK_RECORDS, end), labels[first])
                for first in range(start, end, BLOCK_RECORDS)
            ]
        starts.append(len(blocks))
    return np.array(blocks, dtype=np.int64).reshape(-1, 3), tuple(starts)


def count_owners(blocks: Integers, shares: Floats, scheme: Scheme) -> list[float]:
    """Return how many owners train each head: the sum of their records' shares.

    Guarantees:
        Sums are exact up to one rounding, so they do not depend on the order of the records.
    """

    def sum_of(head: int) -> float:
        own = (block for block in blocks if head in scheme.heads_of_class[block[2]])
        return math.fsum(chain.from_iterable(shares[start:end].tolist() for start, end, _ in own))

    return [sum_of(head) for head in range(scheme.heads)]


class HeadSource(Protocol):
    """Records for training, in memory or on disk; see `HeadRecords`."""

    @property
    def width(self) -> int:
        """The number of features."""

    @property
    def blocks(self) -> Integers:
        """The first row, the end and the class of each block."""

    @property
    def starts(self) -> tuple[int, ...]:
        """Where the blocks of each batch begin, and those of the last one end."""

    def counts(self, batch: int, scheme: Scheme) -> list[float]:
        """Return how many owners of a batch's records train each head."""

    def window(self, first: int, last: int) -> HeadRecords:
        """Return the records of blocks first..last-1."""


@dataclass(frozen=True)
class _Window:
    """Some blocks of a source, read when they are needed."""

    records: HeadSource
    first: int
    last: int

    def get(self) -> HeadRecords:
        return self.records.window(self.first, self.last)


@dataclass(frozen=True)
class Descent:
    """What stays the same from step to step: the settings, and a batch's records in windows."""

    recipe: LinearRecipe
    scheme: Scheme
    records: HeadSource
    engine: Engine
    windows: list[list[tuple[int, int, Handle[HeadRecords]]]]  # per batch: first and last block

    @classmethod
    def of(
        cls, recipe: LinearRecipe, scheme: Scheme, records: HeadSource, engine: Engine
    ) -> Descent:
        """Cut the blocks of each batch into windows, at least one per worker if it is worth it."""
        windows = []
        for first, last in pairwise(records.starts):
            rows = int(records.blocks[first:last, 1].sum() - records.blocks[first:last, 0].sum())
            products = rows * records.width * scheme.heads_of_class.shape[1]
            parts = -(-(last - first) // window_blocks(records.width))
            parts = max(engine.parallel if products >= _SMALL else 1, parts)
            parts = min(parts, last - first)  # none, if the batch is empty
            ends = [first + (last - first) * part // max(1, parts) for part in range(parts + 1)]
            windows.append(
                [(low, high, _shared(records, low, high, engine)) for low, high in pairwise(ends)]
            )
        return cls(recipe, scheme, records, engine, windows)

    def gradient(self, weights: Floats, batch: int) -> Floats:
        """Return the sum of a batch's clipped gradients, per head."""
        high, low = np.zeros_like(weights), np.zeros_like(weights)
        windows, shared = self.windows[batch], self.engine.share(weights)
        arguments = [(self.recipe, self.scheme, window, shared) for _, _, window in windows]
        if len(windows) == 1 and not self.engine.remote:  # a thread costs more than it saves
            found = iter([sum_window(*arguments[0], None)])
        else:
            found = self.engine.run(sum_window, [Task(each, 0) for each in arguments], None)
        for (first, last, _), partial in zip(windows, found, strict=True):
            # Block by block, in their order: windows do not change the sum.
            blocks = self.records.blocks[first:last]
            sum_blocks(partial, blocks, self.scheme.heads_of_class, 0, last - first, high, low)
        return high + low


def _shared(records: HeadSource, first: int, last: int, engine: Engine) -> Handle[HeadRecords]:
    if engine.remote:
        return engine.share(records.window(first, last))
    return _Window(records, first, last)


def sum_window(
    recipe: LinearRecipe,
    scheme: Scheme,
    window: Handle[HeadRecords],
    weights: Handle[Floats],
    watch: ProgressCallback | None,
) -> Floats:
    """Return the gradient sums of a window's blocks, per block and head; a task of an engine."""
    records, given = window.get(), weights.get()
    count = len(records.blocks)
    partial = np.empty((count, scheme.heads_of_class.shape[1], given.shape[1]))
    scheme.add_gradients(recipe, records, given, range(count), partial)
    return partial


def descend(
    recipe: LinearRecipe,
    scheme: Scheme,
    records: HeadSource,
    watch: ProgressCallback | None,
    engine: Engine,
) -> Floats:
    """Return the weights of all heads after training: (heads, features).

    Guarantees:
        Per step, the result is within the rounding bound of `make_ball` of the step in real
        numbers. It does not depend on the engine or on the number of workers.
    """
    schedule = Schedule.of(recipe, scheme.loss(recipe).curvature)
    weights = np.zeros((scheme.heads, records.width))
    size = scheme.batch_size(recipe)
    factors = [
        np.array(
            [
                [schedule.size * inverse_normaliser(count, size, recipe.growth)]
                for count in records.counts(batch, scheme)
            ]
        )
        for batch in range(recipe.batches)
    ]
    descent = Descent.of(recipe, scheme, records, engine)
    for step in range(schedule.count):
        batch = step % recipe.batches
        total = descent.gradient(weights, batch)
        weights = schedule.decay * weights - factors[batch] * total
        if watch is not None:
            watch(1)
    if not np.isfinite(weights).all():
        raise UnsoundBounds("the weights of a head are not finite; rescale the features")
    return weights


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
