"""Fused loops for linear heads: scaled features, gradient sums in blocks, and scores.

Rounding here is covered by a public bound (docs/theory/linear-heads.md) that holds for any order of
additions within a block, so the compiler may reorder sums. On one kind of processor, every loop
still has one order, so that the same records give the same bits on any number of threads.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

BLOCK_RECORDS = 1024
"""The maximum number of records whose gradients are added in plain float64."""

TILE = 128
"""The number of records whose features are kept in the processor's cache between two passes."""


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "nsz"})
def _dot(left, right):
    """Return the dot product, in the order that suits the processor's vectors.

    The order depends on the length alone.
    """
    total = 0.0
    for i in range(len(left)):
        total += left[i] * right[i]
    return total


@njit(nogil=True, cache=True, error_model="numpy")
def scaled_rows(rows, scale, bias, radius):
    """Return each row times `scale` with `bias` appended, clipped to norm `radius`, and the norms.

    A row with a number that is not finite, or that overflows, becomes 0 altogether.

    Guarantees:
        A row of the result depends only on that row. Norms exceed `radius` by less than a factor of
        1 + 2^-20.
    """
    count, width = rows.shape
    features = np.empty((count, width + 1))
    norms = np.empty(count)
    for s in range(count):
        row = features[s]
        for i in range(width):
            row[i] = rows[s, i] * scale
        row[width] = bias
        norm = math.sqrt(_dot(row, row))
        if not norm < math.inf:
            row[:] = 0.0
            norm = 0.0
        elif norm > radius:
            row *= radius / norm
            norm = math.sqrt(_dot(row, row))
        norms[s] = norm
    return features, norms


@njit(nogil=True, cache=True, error_model="numpy")
def scores(features, weights, offsets):
    """Return the product of every row with every weight vector, plus the offsets."""
    result = np.empty((len(features), len(weights)))
    for s in range(len(features)):
        for h in range(len(weights)):
            result[s, h] = _dot(features[s], weights[h]) + offsets[s, h]
    return result


@njit(nogil=True, cache=True, error_model="numpy")
def _tile_scores(columns, low, high, weights, result):
    """Write the scores of records low..high-1 to `result`, which holds their offsets."""
    for i in range(len(weights)):
        weight, column = weights[i], columns[i, low:high]
        for s in range(high - low):
            result[s] += weight * column[s]


@njit(nogil=True, cache=True, error_model="numpy")
def _add_tile(columns, low, high, factors, total):
    """Add the features of records low..high-1, each times its factor, to `total`."""
    for i in range(len(total)):
        total[i] += _dot(factors[: high - low], columns[i, low:high])


@njit(nogil=True, cache=True, error_model="numpy")
def add_head_gradients(
    columns, norms, shares, offsets, blocks, heads, targets, clips, weights, first, last, partial
):
    """Add up the clipped gradients of blocks first..last-1, one sum per block and head.

    `blocks` holds the first row, the end and the class of each block, and `columns` the features,
    block by block, feature by feature. Class c trains the heads heads[c], with targets[c] (0 or 1)
    and the clips clips[c]. The gradient of a record is its features times its residual,
    sigmoid(score) - target, clipped to +-clip / norm, and counts with its share.
    """
    width = weights.shape[1]
    factors = np.empty(TILE)
    for block in range(first, last):
        start, end, own = blocks[block]
        block_columns = columns[start * width : end * width].reshape(width, end - start)
        sums = partial[block]
        sums[:] = 0.0
        for low in range(0, end - start, TILE):
            high = min(low + TILE, end - start)
            for k in range(heads.shape[1]):
                h, target, clip = heads[own, k], targets[own, k], clips[own, k]
                for s in range(high - low):
                    factors[s] = offsets[start + low + s, h]
                _tile_scores(block_columns, low, high, weights[h], factors)
                for s in range(high - low):
                    norm, share = norms[start + low + s], shares[start + low + s]
                    limit = clip / norm if norm > 0.0 else 0.0
                    residual = 1.0 / (1.0 + math.exp(-factors[s])) - target
                    factors[s] = share * min(max(residual, -limit), limit)
                _add_tile(block_columns, low, high, factors, sums[k])


@njit(nogil=True, cache=True, error_model="numpy")
def add_softmax_gradients(
    columns, norms, shares, offsets, blocks, clip, weights, first, last, partial
):
    """Add up the clipped softmax gradients of blocks first..last-1, one sum per block and class.

    With v the log-sum-exp of the rivals' scores minus the own score, the gradient of a record is
    min(sigmoid(v), clip / norm) * (softmax over the rivals - own class), times its features; it
    counts with its share.
    """
    classes, width = weights.shape
    factors = np.empty((classes, TILE))
    for block in range(first, last):
        start, end, own = blocks[block]
        block_columns = columns[start * width : end * width].reshape(width, end - start)
        sums = partial[block]
        sums[:] = 0.0
        for low in range(0, end - start, TILE):
            high = min(low + TILE, end - start)
            for h in range(classes):
                for s in range(high - low):
                    factors[h, s] = offsets[start + low + s, h]
                _tile_scores(block_columns, low, high, weights[h], factors[h])
            for s in range(high - low):
                norm, share = norms[start + low + s], shares[start + low + s]
                _softmax_factors(factors[:, s], own, clip / norm if norm > 0.0 else 0.0, share)
            for h in range(classes):
                _add_tile(block_columns, low, high, factors[h], sums[h])


@njit(nogil=True, cache=True, error_model="numpy")
def _softmax_factors(scores, own, limit, share):
    """Replace the scores of a record by the factors of its features in the gradient."""
    largest = -math.inf
    for h in range(len(scores)):
        if h != own and scores[h] > largest:
            largest = scores[h]
    total, score = 0.0, scores[own]
    for h in range(len(scores)):
        scores[h] = math.exp(scores[h] - largest) if h != own else 0.0
        total += scores[h]
    lead = largest + math.log(total) - score
    strength = share * min(1.0 / (1.0 + math.exp(-lead)), limit)
    for h in range(len(scores)):
        scores[h] = -strength if h == own else strength * (scores[h] / total)


@njit(nogil=True, cache=True, error_model="numpy")
def sum_blocks(partial, blocks, heads, first, last, high, low):
    """Add the blocks' sums to the heads' totals high + low, in double-double arithmetic.

    The totals' error does not grow with the number of blocks, which is private: each addition has a
    relative error of about 2^-104.
    """
    for block in range(first, last):
        own = blocks[block, 2]
        for k in range(heads.shape[1]):
            h = heads[own, k]
            for i in range(partial.shape[2]):
                x, a = partial[block, k, i], high[h, i]
                total = a + x
                b = total - a
                error = ((a - (total - b)) + (x - b)) + low[h, i]
                high[h, i] = total + error
                low[h, i] = error - (high[h, i] - total)
