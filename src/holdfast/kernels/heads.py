"""Fused loops for linear heads: scaled features, gradient sums in blocks, and scores.

Rounding here is covered by a public bound (docs/theory/linear-heads.md) that holds for any order of
additions within a block. Every loop still has one fixed order, so that the same records give the
same bits on any number of threads.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

BLOCK_RECORDS = 1024
"""The maximum number of records whose gradients are added in plain float64."""


@njit(nogil=True, cache=True, error_model="numpy")
def _dot(left, right):
    """Return the dot product, added in eight lanes so that it can be vectorised."""
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = 0.0
    whole = len(left) - len(left) % 8
    for i in range(0, whole, 8):
        a0 += left[i] * right[i]
        a1 += left[i + 1] * right[i + 1]
        a2 += left[i + 2] * right[i + 2]
        a3 += left[i + 3] * right[i + 3]
        a4 += left[i + 4] * right[i + 4]
        a5 += left[i + 5] * right[i + 5]
        a6 += left[i + 6] * right[i + 6]
        a7 += left[i + 7] * right[i + 7]
    rest = 0.0
    for i in range(whole, len(left)):
        rest += left[i] * right[i]
    return (((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7))) + rest


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
def add_head_gradients(
    features, norms, offsets, blocks, heads, targets, clips, weights, first, last, partial
):
    """Add up the clipped gradients of blocks first..last-1, one sum per block and head.

    `blocks` holds the first row, the end and the class of each block. Class c trains the heads
    heads[c], with targets[c] (0 or 1) and the clips clips[c]. The gradient of a record is its
    features times its residual, sigmoid(score) - target, clipped to +-clip / norm.
    """
    for block in range(first, last):
        start, end, own = blocks[block]
        sums = partial[block]
        sums[:] = 0.0
        for s in range(start, end):
            row = features[s]
            inverse = 1.0 / norms[s] if norms[s] > 0.0 else 0.0
            for k in range(heads.shape[1]):
                h = heads[own, k]
                score = _dot(row, weights[h]) + offsets[s, h]
                residual = 1.0 / (1.0 + math.exp(-score)) - targets[own, k]
                limit = clips[own, k] * inverse
                residual = min(max(residual, -limit), limit)
                total = sums[k]
                for i in range(len(row)):
                    total[i] += residual * row[i]


@njit(nogil=True, cache=True, error_model="numpy")
def add_softmax_gradients(features, norms, offsets, blocks, clip, weights, first, last, partial):
    """Add up the clipped softmax gradients of blocks first..last-1, one sum per block and class.

    With v the log-sum-exp of the rivals' scores minus the own score, the gradient of a record is
    min(sigmoid(v), clip / norm) * (softmax over the rivals - own class), times its features.
    """
    classes = len(weights)
    share = np.empty(classes)
    for block in range(first, last):
        start, end, own = blocks[block]
        sums = partial[block]
        sums[:] = 0.0
        for s in range(start, end):
            row = features[s]
            largest = -math.inf
            for h in range(classes):
                share[h] = _dot(row, weights[h]) + offsets[s, h]
                if h != own and share[h] > largest:
                    largest = share[h]
            score = share[own]
            total = 0.0
            for h in range(classes):
                share[h] = math.exp(share[h] - largest) if h != own else 0.0
                total += share[h]
            lead = largest + math.log(total) - score
            limit = clip / norms[s] if norms[s] > 0.0 else 0.0
            strength = min(1.0 / (1.0 + math.exp(-lead)), limit)
            for h in range(classes):
                factor = -strength if h == own else strength * (share[h] / total)
                for i in range(len(row)):
                    sums[h, i] += factor * row[i]


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
