"""Descent: train linear heads by full sums over records in blocks, in the order of hashed ids."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from ..errors import UnsoundBounds
from ..kernels.heads import BLOCK_RECORDS, sum_blocks
from ..progress import ProgressCallback
from ..workers import workers
from .ball import Schedule, inverse_normaliser
from .linear_recipe import LinearRecipe
from .multiclass import Floats, Integers, Scheme

_SMALL = 200_000  # products per step below which a second thread costs more than it saves


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
        batch, labels = batch[order], labels[order]
        edges = np.flatnonzero((np.diff(batch) != 0) | (np.diff(labels) != 0)) + 1
        blocks, starts = [], [0]
        for number in range(batches):
            low, high = np.searchsorted(batch, (number, number + 1))
            inner = edges[(edges > low) & (edges < high)].tolist()
            for start, end in zip([low, *inner], [*inner, high], strict=True):
                blocks += [
                    (first, min(first + BLOCK_RECORDS, end), labels[first])
                    for first in range(start, end, BLOCK_RECORDS)
                ]
            starts.append(len(blocks))
        width = features.shape[1]
        columns = np.empty(features.size)
        for start, end, _ in blocks:
            rows = features[order[start:end]]
            columns[start * width : end * width].reshape(width, end - start)[:] = rows.T
        return cls(
            columns,
            width,
            norms[order],
            shares[order],
            np.ascontiguousarray(offsets[order]),
            np.array(blocks, dtype=np.int64).reshape(-1, 3),
            tuple(starts),
        )

    def counts(self, batch: int, scheme: Scheme) -> list[float]:
        """Return how many owners of a batch's records train each head: the sum of their shares.

        Guarantees:
            Sums are exact up to one rounding, so they do not depend on the order of the records.
        """
        by_head: list[list[float]] = [[] for _ in range(scheme.heads)]
        for start, end, own in self.blocks[self.starts[batch] : self.starts[batch + 1]]:
            for head in scheme.heads_of_class[own]:
                by_head[head] += self.shares[start:end].tolist()
        return [math.fsum(shares) for shares in by_head]


def descend(
    recipe: LinearRecipe, scheme: Scheme, records: HeadRecords, watch: ProgressCallback | None
) -> Floats:
    """Return the weights of all heads after training: (heads, features).

    Guarantees:
        Per step, the result is within the rounding bound of `make_ball` of the step in real
        numbers. It does not depend on the number of threads.
    """
    schedule = Schedule.of(recipe, scheme.loss(recipe).curvature)
    weights = np.zeros((scheme.heads, records.width))
    partial = np.empty((len(records.blocks), scheme.heads_of_class.shape[1], weights.shape[1]))
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
    with workers() as pool:
        for step in range(schedule.count):
            batch = step % recipe.batches
            total = _gradient(recipe, scheme, records, weights, batch, partial, pool)
            weights = schedule.decay * weights - factors[batch] * total
            if watch is not None:
                watch(1)
    if not np.isfinite(weights).all():
        raise UnsoundBounds("the weights of a head are not finite; rescale the features")
    return weights


def _gradient(
    recipe: LinearRecipe,
    scheme: Scheme,
    records: HeadRecords,
    weights: Floats,
    batch: int,
    partial: Floats,
    pool: ThreadPoolExecutor,
) -> Floats:
    """Return the sum of a batch's clipped gradients, per head."""
    first, last = records.starts[batch], records.starts[batch + 1]

    def run(span: range) -> None:
        scheme.add_gradients(recipe, records, weights, span, partial)

    _run_in_parts(run, range(first, last), partial.shape[1] * records.columns.size, pool)
    high, low = np.zeros_like(weights), np.zeros_like(weights)
    sum_blocks(partial, records.blocks, scheme.heads_of_class, first, last, high, low)
    return high + low


def _run_in_parts(
    run: Callable[[range], None], whole: range, products: int, pool: ThreadPoolExecutor
) -> None:
    """Run the blocks of a step on all threads, or on one if there is little to do."""
    threads = 1 if products < _SMALL else min(len(whole), torch.get_num_threads())
    if threads <= 1:
        run(whole)
        return
    ends = [whole.start + len(whole) * part // threads for part in range(threads + 1)]
    list(pool.map(run, (range(first, last) for first, last in pairwise(ends))))
