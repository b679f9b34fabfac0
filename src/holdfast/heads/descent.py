"""Descent: train linear heads by full sums over records in blocks, in the order of hashed ids."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from ..arrays import Floats, Integers
from ..engines import Engine, Handle, Task
from ..errors import UnsoundBounds
from ..records import MemoryRows, Rows, RowStore, Spool
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
class HeadWindow:
    """Some blocks of records as heads see them.

    `blocks` holds the first row, the end and the class of each block. `columns` holds the features
    block by block, and feature by feature within a block. The shares of an owner's records add up
    to 1.
    """

    columns: Floats
    width: int  # number of features
    norms: Floats
    shares: Floats
    offsets: Floats
    blocks: Integers


@dataclass(frozen=True, eq=False)
class HeadBlocks:
    """Records as heads see them, sorted by batch, class and key, and cut into blocks.

    The features are in memory or on disk, block by block and feature by feature within a block.
    Batch number i has the blocks starts[i]..starts[i + 1]-1; `offsets` is None if all are 0.
    """

    columns: RowStore
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
        rows: Rows,
        inputs: HeadInputs,
        scheme: Scheme,
        on_progress: ProgressCallback | None = None,
    ) -> HeadBlocks:
        """Compute what heads see of sorted records, in blocks of at most BLOCK_RECORDS.

        Args:
            rows: The records of a member, as `Prepared.sorted_rows` returns them.
            inputs: The public functions of a record.
            scheme: The heads of the classes.
            on_progress: Called with the number of records just processed.
        """
        labels = rows.labels.numpy()
        blocks, starts = cut_into_blocks(rows.starts, labels)
        in_memory = isinstance(rows.features, MemoryRows)
        columns: RowStore = MemoryRows(1, np.float64) if in_memory else Spool(1, np.float64)
        kept = np.empty((len(labels) * inputs.width, 1)) if in_memory else None
        norms = np.empty(len(labels))
        offsets = None if inputs.offset is None else np.empty((len(labels), scheme.heads))
        step = window_blocks(max(rows.features.width, inputs.width))
        for number in range(0, len(blocks), step):
            window = blocks[number : number + step]
            low, high = int(window[0, 0]), int(window[-1, 1])
            records = rows.between(low, high).features
            features, norms[low:high], some = inputs(records, scheme, on_progress)
            if offsets is not None:
                offsets[low:high] = some
            for start, end, _ in window.tolist():
                column = features[start - low : end - low].T.reshape(-1, 1)
                if kept is None:
                    columns.append(column)
                else:
                    kept[start * inputs.width : end * inputs.width] = column
        if kept is not None:
            columns.append(kept)
        shares = np.ones(len(labels)) if rows.counts is None else 1.0 / rows.counts.double().numpy()
        return cls(columns, inputs.width, norms, shares, offsets, scheme.heads, blocks, starts)

    def counts(self, batch: int, scheme: Scheme) -> list[float]:
        """Return how many owners of a batch's records train each head: the sum of their shares."""
        blocks = self.blocks[self.starts[batch] : self.starts[batch + 1]]
        return count_owners(blocks, self.shares, scheme)

    def window(self, first: int, last: int) -> HeadWindow:
        """Return the records of blocks first..last-1, read from disk if they are there."""
        low, high = int(self.blocks[first, 0]), int(self.blocks[last - 1, 1])
        columns = self.columns.read(low * self.width, high * self.width).reshape(-1)
        offsets = self.offsets
        return HeadWindow(
            columns,
            self.width,
            self.norms[low:high],
            self.shares[low:high],
            np.zeros((high - low, self.heads)) if offsets is None else offsets[low:high],
            self.blocks[first:last] - np.array([low, low, 0]),
        )

    def windows(self) -> Iterator[HeadWindow]:
        """Yield all records, a window in memory at a time."""
        step = window_blocks(self.width)
        for first in range(0, len(self.blocks), step):
            yield self.window(first, min(first + step, len(self.blocks)))


def cut_into_blocks(batches: tuple[int, ...], labels: Integers) -> tuple[Integers, tuple[int, ...]]:
    """Cut sorted records into blocks of one batch and class, of at most BLOCK_RECORDS.

    Args:
        batches: Where each batch begins, and where the last one ends.
        labels: The class of each record.

    Returns:
        The first row, the end and the class of each block; and where the blocks of each batch
        begin, and those of the last one end.
    """
    edges = np.flatnonzero(np.diff(labels) != 0) + 1
    blocks: list[tuple[int, int, int]] = []
    starts = [0]
    for low, high in pairwise(batches):
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


@dataclass(frozen=True)
class _LocalWindow:
    """Some blocks of records of this process, read when they are needed."""

    records: HeadBlocks
    first: int
    last: int

    def get(self) -> HeadWindow:
        return self.records.window(self.first, self.last)


@dataclass(frozen=True)
class Descent:
    """What stays the same from step to step: the settings, and a batch's records in windows."""

    recipe: LinearRecipe
    scheme: Scheme
    records: HeadBlocks
    engine: Engine
    windows: list[list[tuple[int, int, Handle[HeadWindow]]]]  # per batch: first and last block

    @classmethod
    def of(
        cls, recipe: LinearRecipe, scheme: Scheme, records: HeadBlocks, engine: Engine
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


def _shared(records: HeadBlocks, first: int, last: int, engine: Engine) -> Handle[HeadWindow]:
    if engine.remote:
        return engine.share(records.window(first, last))
    return _LocalWindow(records, first, last)


def sum_window(
    recipe: LinearRecipe,
    scheme: Scheme,
    window: Handle[HeadWindow],
    weights: Handle[Floats],
    on_progress: ProgressCallback | None,
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
    records: HeadBlocks,
    on_progress: ProgressCallback | None,
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
        if on_progress is not None:
            on_progress(1)
    if not np.isfinite(weights).all():
        raise UnsoundBounds("the weights of a head are not finite; rescale the features")
    return weights
