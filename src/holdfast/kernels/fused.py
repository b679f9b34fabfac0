"""The kernels as fused loops on the CPU: no per-record gradient is ever held as a whole.

Records are taken in groups of four: their units fill a small tile that stays in the first-level cache, then the tile
is added to the sums and, where the relation selects, offered to the buffers of largest entries. All values are whole
numbers, so no order of addition matters and the result does not depend on threads.
No fastmath: every product is rounded as IEEE says, and products are never fused with sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from .units import BLOCK, LOWEST, UNITS

_GROUP = 4
_LANES = 8  # hit flags are one byte each and are tested eight at a time
_STRIP = 64  # columns per task, where the gradient is given as rows
_TILE = 128  # records whose inputs stay in the second-level cache while a task's outputs go over them
_NEURONS = 8  # outputs per task


@njit(parallel=True, cache=True)
def _interval_matmul(left_low, left_high, right_low, right_high, low, high):
    stack, rows, inner = left_low.shape
    columns = right_low.shape[2]
    for task in prange(stack * rows):
        matrix, row = task // rows, task % rows
        sums_low, sums_high = low[matrix, row], high[matrix, row]
        for i in range(inner):
            a, b = left_low[matrix, row, i], left_high[matrix, row, i]
            c, d = right_low[matrix, i], right_high[matrix, i]
            for j in range(columns):
                ac, ad, bc, bd = a * c[j], a * d[j], b * c[j], b * d[j]
                sums_low[j] += min(min(ac, ad), min(bc, bd))
                sums_high[j] += max(max(ac, ad), max(bc, bd))


@njit(cache=True)
def _fill_outer(out_low, out_high, in_low, in_high, low, negated_high):
    """One record's row of interval products, in whole units."""
    limit = in_low.dtype.type(UNITS)
    for j in range(in_low.shape[0]):
        if in_high is None:
            a, b = out_low * in_low[j], out_high * in_low[j]
            least, most = min(a, b), max(a, b)
        else:
            a, b, c, d = out_low * in_low[j], out_low * in_high[j], out_high * in_low[j], out_high * in_high[j]
            least, most = min(min(a, b), min(c, d)), max(max(a, b), max(c, d))
        low[j] = np.rint(min(max(least, -limit), limit))
        negated_high[j] = -np.rint(min(max(most, -limit), limit))


@njit(cache=True)
def _fill_row(row_low, row_high, low, negated_high):
    limit = row_low.dtype.type(UNITS)
    for j in range(row_low.shape[0]):
        low[j] = np.rint(min(max(row_low[j], -limit), limit))
        negated_high[j] = -np.rint(min(max(row_high[j], -limit), limit))


@njit(cache=True)
def _add(tile, sums):
    first, second, third, fourth = tile[0], tile[1], tile[2], tile[3]
    for j in range(sums.shape[0]):
        sums[j] += (first[j] + second[j]) + (third[j] + fourth[j])


@njit(cache=True)
def _keep_largest(buffer, size, keep):
    """Move the `keep` largest of the first `size` entries to the front; returns the smallest of them."""
    below, least = np.int32(LOWEST), np.int32(UNITS)  # more than or exactly `keep` exceed `below`; fewer exceed `least`
    while least - below > 1:
        middle = (below + least) >> 1
        exceed = np.int32(0)
        for i in range(size):
            exceed += np.int32(buffer[i] > middle)
        if exceed >= keep:
            below = middle
        else:
            least = middle
    kept = 0
    for i in range(size):
        value = buffer[i]
        buffer[kept] = value
        kept += value > least
    for i in range(kept, keep):
        buffer[i] = least
    return least


@njit(cache=True)
def _offer(tile, hits, words, threshold, count, buffer, keep):
    """Append to the buffers whatever exceeds its parameter's threshold; a full buffer is cut back to the largest."""
    first, second, third, fourth = tile[0], tile[1], tile[2], tile[3]
    for j in range(threshold.shape[0]):
        hits[j] = max(max(first[j], second[j]), max(third[j], fourth[j])) > threshold[j]
    full = buffer.shape[1] - _GROUP
    for word in range(words.shape[0]):
        if words[word] == 0:
            continue
        for j in range(word * _LANES, word * _LANES + _LANES):
            if hits[j] == 0:
                continue
            for row in range(_GROUP):
                buffer[j, count[j]] = np.int16(tile[row, j])
                count[j] += tile[row, j] > threshold[j]
            if count[j] >= full:
                threshold[j] = _keep_largest(buffer[j], count[j], keep)
                count[j] = keep


@njit(cache=True)
def _flush(tiles, filled, sums, hits, words, largest, row, first, last):
    """Add a tile with `filled` rows to the sums of one row of parameters, columns first..last, and offer it."""
    for end in range(2):
        tile = tiles[end]
        tile[filled:] = 0
        _add(tile, sums[end, row, first:last])
        if largest is not None:
            tile[filled:] = LOWEST
            threshold, count, buffer, keep = largest
            stop = first + tile.shape[1]
            _offer(
                tile, hits, words, threshold[end, row, first:stop], count[end, row, first:stop], buffer[end, row, first:stop], keep
            )


@njit(cache=True)
def _all_zeros_lose(largest, row):
    """Whether an entry 0 can no longer be among the largest of any parameter in this row."""
    if largest is None:
        return True
    threshold = largest[0]
    return threshold[0, row].min() >= 0 and threshold[1, row].min() >= 0


@njit(parallel=True, cache=True)
def _absorb_outer(out_low, out_high, in_low, in_high, records, width, sums, largest):
    outputs = out_low.shape[1]
    neurons = _NEURONS if largest is None else 1
    tile_records = _TILE if largest is None else max(records, 1)
    for task in prange((outputs + neurons - 1) // neurons):
        tiles = np.zeros((2, _GROUP, width), in_low.dtype)
        hits = np.zeros(width, np.int8)
        words = hits.view(np.int64)
        for start in range(0, records, tile_records):
            for output in range(task * neurons, min(task * neurons + neurons, outputs)):
                skip_zeros = _all_zeros_lose(largest, output)
                filled = 0
                for s in range(start, min(start + tile_records, records)):
                    if skip_zeros and out_low[s, output] == 0 and out_high[s, output] == 0:
                        continue
                    high = None if in_high is None else in_high[s]
                    _fill_outer(out_low[s, output], out_high[s, output], in_low[s], high, tiles[0, filled], tiles[1, filled])
                    filled += 1
                    if filled == _GROUP:
                        _flush(tiles, filled, sums, hits, words, largest, output, 0, in_low.shape[1])
                        filled = 0
                if filled:
                    _flush(tiles, filled, sums, hits, words, largest, output, 0, in_low.shape[1])


@njit(parallel=True, cache=True)
def _absorb_rows(low, high, records, sums, largest):
    columns = low.shape[1]
    for task in prange((columns + _STRIP - 1) // _STRIP):
        first, last = task * _STRIP, min(task * _STRIP + _STRIP, columns)
        width = (last - first + _LANES - 1) // _LANES * _LANES
        tiles = np.zeros((2, _GROUP, width), low.dtype)
        hits = np.zeros(width, np.int8)
        words = hits.view(np.int64)
        filled = 0
        for s in range(records):
            _fill_row(low[s, first:last], high[s, first:last], tiles[0, filled], tiles[1, filled])
            filled += 1
            if filled == _GROUP or s == records - 1:
                _flush(tiles, filled, sums, hits, words, largest, 0, first, last)
                filled = 0


@njit(parallel=True, cache=True)
def _largest_sums(count, buffer, keep, sums):
    ends, rows, columns = sums.shape
    for row in prange(rows):
        for end in range(ends):
            for j in range(columns):
                size = count[end, row, j]
                entries = buffer[end, row, j]
                if size > keep:
                    _keep_largest(entries, size, keep)
                total = 0
                for i in range(min(size, keep)):
                    total += entries[i]
                sums[end, row, j] = total


def _padded(columns: int) -> int:
    return -(-columns // _LANES) * _LANES


@dataclass(frozen=True)
class Largest:
    """For both ends of every parameter a buffer of candidates for the `keep` largest entries, exact at any time.

    An entry enters its buffer only if it exceeds the threshold: the `keep`-th largest when the buffer was last cut.
    """

    keep: int
    columns: int
    threshold: np.ndarray
    count: np.ndarray
    buffer: np.ndarray

    @classmethod
    def start(cls, rows: int, columns: int, keep: int, floor: int, like: Tensor) -> Largest:
        shape = (2, rows, _padded(columns))
        threshold = np.full(shape, floor, like.numpy().dtype)
        threshold[:, :, columns:] = UNITS  # the padding never hits
        buffer = np.empty((*shape, max(2 * keep, 16) + _GROUP), np.int16)
        return cls(keep, columns, threshold, np.zeros(shape, np.int32), buffer)

    @property
    def state(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        return self.threshold, self.count, self.buffer, self.keep

    def sums(self) -> Tensor:
        """(2, rows, columns): the sums of the `keep` largest."""
        sums = np.empty((2, self.buffer.shape[1], self.columns), np.float64)
        _largest_sums(self.count, self.buffer, self.keep, sums)
        return torch.from_numpy(sums)


def interval_matmul(left_low: Tensor, left_high: Tensor, right_low: Tensor, right_high: Tensor) -> tuple[Tensor, Tensor]:
    """See `plain.interval_matmul`."""
    stacked = left_low.dim() == 3
    lefts = [(end if stacked else end[None]).contiguous().numpy() for end in (left_low, left_high)]
    rights = [(end if stacked else end[None]).contiguous().numpy() for end in (right_low, right_high)]
    low = np.zeros((lefts[0].shape[0], lefts[0].shape[1], rights[0].shape[2]), lefts[0].dtype)
    high = np.zeros_like(low)
    _interval_matmul(*lefts, *rights, low, high)
    return tuple(torch.from_numpy(end if stacked else end[0]) for end in (low, high))  # type: ignore[return-value]


def absorb_outer(
    out_low: Tensor, out_high: Tensor, in_low: Tensor, in_high: Tensor | None, count: int, totals: Tensor, largest: Largest | None
) -> None:
    """See `plain.absorb_outer`."""
    sums = _block_sums(count, totals, in_low)
    high = None if in_high is None else in_high.contiguous().numpy()
    ins = in_low.contiguous().numpy()
    state = None if largest is None else largest.state
    _absorb_outer(out_low.contiguous().numpy(), out_high.contiguous().numpy(), ins, high, count, _padded(ins.shape[1]), sums, state)
    totals += torch.from_numpy(sums)


def absorb_rows(low: Tensor, high: Tensor, count: int, totals: Tensor, largest: Largest | None) -> None:
    """See `plain.absorb_rows`."""
    sums = _block_sums(count, totals, low)
    state = None if largest is None else largest.state
    _absorb_rows(low.contiguous().numpy(), high.contiguous().numpy(), count, sums, state)
    totals += torch.from_numpy(sums)


def _block_sums(count: int, totals: Tensor, like: Tensor) -> np.ndarray:
    if count > BLOCK:
        raise ValueError(f"{count} records in a block: float32 sums are exact up to {BLOCK}")
    return np.zeros(tuple(totals.shape), like.numpy().dtype)
