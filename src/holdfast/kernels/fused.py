"""The kernels as fused loops on the CPU: no per-record gradient is ever held as a whole.

Records are taken in groups of four, so that a sum is loaded and stored once for four products. Where the relation
selects, the group's largest entries are compared with thresholds, and the few that exceed them are computed again and
put into buffers. All values are whole numbers, so no order of addition matters.
Each loop runs on one thread and lets go of Python's lock: distances are bounded side by side (training/loop.py), which
leaves no core idle in between, and nothing depends on the number of threads.
No fastmath: every product is rounded as IEEE says, and products are never fused with sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numba import njit
from torch import Tensor

from .units import BLOCK, LOWEST, UNITS

_GROUP = 4
_LANES = 8  # hit flags are one byte each and are tested eight at a time
_TILE = 128  # records whose inputs stay in the second-level cache while all outputs go over them


@njit(nogil=True, cache=True)
def _interval_matmul(left_low, left_high, right_low, right_high, low, high):
    stack, rows, inner = left_low.shape
    for matrix in range(stack):
        for row in range(rows):
            sums_low, sums_high = low[matrix, row], high[matrix, row]
            for i in range(inner):
                a, b = left_low[matrix, row, i], left_high[matrix, row, i]
                c, d = right_low[matrix, i], right_high[matrix, i]
                for j in range(c.shape[0]):
                    ac, ad, bc, bd = a * c[j], a * d[j], b * c[j], b * d[j]
                    sums_low[j] += min(min(ac, ad), min(bc, bd))
                    sums_high[j] += max(max(ac, ad), max(bc, bd))


@njit(nogil=True, cache=True)
def _ordered_matmul(left, right, result):
    stack, rows, inner = left.shape
    for matrix in range(stack):
        for row in range(rows):
            sums = result[matrix, row]
            for i in range(inner):
                a, b = left[matrix, row, i], right[matrix, i]
                for j in range(b.shape[0]):
                    sums[j] += a * b[j]


@njit(cache=True)
def _entry(out_low, out_high, in_low, in_high, limit):
    """The lower and the negated upper end of [out] * [in], clipped and rounded to whole units."""
    a, b, c, d = out_low * in_low, out_low * in_high, out_high * in_low, out_high * in_high
    least, most = min(min(a, b), min(c, d)), max(max(a, b), max(c, d))
    return np.rint(min(max(least, -limit), limit)), -np.rint(min(max(most, -limit), limit))


@njit(cache=True)
def _point_entry(out_low, out_high, entry, limit):
    """The same where [in] is a point: half the products."""
    a, b = out_low * entry, out_high * entry
    return np.rint(min(max(min(a, b), -limit), limit)), -np.rint(min(max(max(a, b), -limit), limit))


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
def _absorb_group(outs, chosen, in_low, in_high, sums, hits, largest, row):
    """Add four records' entries to one row of parameters; flag the parameters whose largest entries may change.

    `outs` (2, 4): the ends of each record's factor for this row; a record that is only padding has 0.
    """
    limit = outs.dtype.type(UNITS)
    a0, a1, a2, a3 = outs[0, 0], outs[0, 1], outs[0, 2], outs[0, 3]
    b0, b1, b2, b3 = outs[1, 0], outs[1, 1], outs[1, 2], outs[1, 3]
    x0, x1, x2, x3 = in_low[chosen[0]], in_low[chosen[1]], in_low[chosen[2]], in_low[chosen[3]]
    if in_high is not None:
        y0, y1, y2, y3 = in_high[chosen[0]], in_high[chosen[1]], in_high[chosen[2]], in_high[chosen[3]]
    sums_low, sums_high = sums[0, row], sums[1, row]
    if largest is not None:
        threshold_low, threshold_high = largest[0][0, row], largest[0][1, row]
    for j in range(x0.shape[0]):
        if in_high is None:
            p0, q0 = _point_entry(a0, b0, x0[j], limit)
            p1, q1 = _point_entry(a1, b1, x1[j], limit)
            p2, q2 = _point_entry(a2, b2, x2[j], limit)
            p3, q3 = _point_entry(a3, b3, x3[j], limit)
        else:
            p0, q0 = _entry(a0, b0, x0[j], y0[j], limit)
            p1, q1 = _entry(a1, b1, x1[j], y1[j], limit)
            p2, q2 = _entry(a2, b2, x2[j], y2[j], limit)
            p3, q3 = _entry(a3, b3, x3[j], y3[j], limit)
        sums_low[j] += (p0 + p1) + (p2 + p3)
        sums_high[j] += (q0 + q1) + (q2 + q3)
        if largest is not None:
            hits[0, j] = max(max(p0, p1), max(p2, p3)) > threshold_low[j]
            hits[1, j] = max(max(q0, q1), max(q2, q3)) > threshold_high[j]


@njit(cache=True)
def _offer_group(outs, filled, chosen, in_low, in_high, hits, largest, row):
    """Append what exceeds its parameter's threshold to that parameter's buffer; cut full buffers back."""
    limit = outs.dtype.type(UNITS)
    thresholds, counts, buffers, keep = largest
    full = buffers.shape[3] - _GROUP
    for end in range(2):
        threshold, count, buffer = thresholds[end, row], counts[end, row], buffers[end, row]
        words = hits[end].view(np.int64)
        for word in range(words.shape[0]):
            if words[word] == 0:
                continue
            for j in range(word * _LANES, word * _LANES + _LANES):
                if hits[end, j] == 0:
                    continue
                for r in range(filled):
                    s = chosen[r]
                    if in_high is None:
                        low, negated_high = _point_entry(outs[0, r], outs[1, r], in_low[s, j], limit)
                    else:
                        low, negated_high = _entry(outs[0, r], outs[1, r], in_low[s, j], in_high[s, j], limit)
                    value = low if end == 0 else negated_high
                    buffer[j, count[j]] = np.int16(value)
                    count[j] += value > threshold[j]
                if count[j] >= full:
                    threshold[j] = _keep_largest(buffer[j], count[j], keep)
                    count[j] = keep


@njit(cache=True)
def _absorb_chosen(outs, filled, chosen, in_low, in_high, sums, hits, largest, row):
    outs[:, filled:] = 0
    _absorb_group(outs, chosen, in_low, in_high, sums, hits, largest, row)
    if largest is not None:
        _offer_group(outs, filled, chosen, in_low, in_high, hits, largest, row)


@njit(cache=True)
def _zeros_lose(largest, row):
    """Whether an entry 0 can no longer be among the largest of any parameter in this row."""
    if largest is None:
        return True
    return largest[0][:, row].min() >= 0


@njit(nogil=True, cache=True)
def _absorb_outer(out_low, out_high, in_low, in_high, records, width, sums, largest):
    outputs = out_low.shape[1]
    outs = np.zeros((2, _GROUP), out_low.dtype)
    hits = np.zeros((2, width), np.int8)
    chosen = np.zeros(_GROUP, np.int64)
    for start in range(0, records, _TILE):
        for row in range(outputs):
            skip_zeros = _zeros_lose(largest, row)
            filled = 0
            for s in range(start, min(start + _TILE, records)):
                if skip_zeros and out_low[s, row] == 0 and out_high[s, row] == 0:
                    continue
                outs[0, filled], outs[1, filled], chosen[filled] = out_low[s, row], out_high[s, row], s
                filled += 1
                if filled == _GROUP:
                    _absorb_chosen(outs, filled, chosen, in_low, in_high, sums, hits, largest, row)
                    filled = 0
            if filled:
                _absorb_chosen(outs, filled, chosen, in_low, in_high, sums, hits, largest, row)


@njit(cache=True)
def _sort(entries, size):
    """Sort the first `size` entries, rising: at once where they are sorted already."""
    for i in range(1, size):
        if entries[i] < entries[i - 1]:
            entries[:size] = np.sort(entries[:size])
            return


@njit(nogil=True, cache=True)
def _largest_sums(count, buffer, keep, wanted, sums):
    """Sums of the `wanted` largest, of at most `keep`. Entries are left in rising order, so that the next sum finds them sorted."""
    ends, rows, columns = sums.shape
    for row in range(rows):
        for end in range(ends):
            for j in range(columns):
                size = count[end, row, j]
                entries = buffer[end, row, j]
                if size > keep:
                    _keep_largest(entries, size, keep)
                    count[end, row, j] = keep  # what lies behind is stale now
                    size = keep
                if wanted < size:
                    _sort(entries, size)
                total = 0
                for i in range(max(size - wanted, 0), size):
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

    def sums(self, wanted: int) -> Tensor:
        """(2, rows, columns): the sums of the `wanted` largest, at most `keep`."""
        sums = np.empty((2, self.buffer.shape[1], self.columns), np.float64)
        _largest_sums(self.count, self.buffer, self.keep, wanted, sums)
        return torch.from_numpy(sums)


def interval_matmul(left_low: Tensor, left_high: Tensor, right_low: Tensor, right_high: Tensor) -> tuple[Tensor, Tensor]:
    """See `plain.interval_matmul`."""
    ends = [_stacked(end) for end in (left_low, left_high, right_low, right_high)]
    low = np.zeros((*ends[0].shape[:2], ends[2].shape[2]), ends[0].dtype)
    high = np.zeros_like(low)
    _interval_matmul(*ends, low, high)
    shape = (*left_low.shape[:-1], right_low.shape[-1])
    return torch.from_numpy(low).view(shape), torch.from_numpy(high).view(shape)


def ordered_matmul(left: Tensor, right: Tensor) -> Tensor:
    """See `plain.ordered_matmul`."""
    ends = [_stacked(left), _stacked(right)]
    result = np.zeros((*ends[0].shape[:2], ends[1].shape[2]), ends[0].dtype)
    _ordered_matmul(*ends, result)
    return torch.from_numpy(result).view(*left.shape[:-1], right.shape[-1])


def _stacked(matrix: Tensor) -> np.ndarray:
    return (matrix if matrix.dim() == 3 else matrix[None]).contiguous().numpy()


def absorb_outer(
    out_low: Tensor, out_high: Tensor, in_low: Tensor, in_high: Tensor | None, count: int, totals: Tensor, largest: Largest | None
) -> None:
    """See `plain.absorb_outer`."""
    if count > BLOCK:
        raise ValueError(f"{count} records in a block: float32 sums are exact up to {BLOCK}")
    sums = np.zeros(tuple(totals.shape), in_low.numpy().dtype)
    outs = [end.contiguous().numpy() for end in (out_low, out_high)]
    ins = [None if end is None else end.contiguous().numpy() for end in (in_low, in_high)]
    state = None if largest is None else (largest.threshold, largest.count, largest.buffer, largest.keep)
    _absorb_outer(*outs, *ins, count, _padded(in_low.shape[1]), sums, state)
    totals += torch.from_numpy(sums)
