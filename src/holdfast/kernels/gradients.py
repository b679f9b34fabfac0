"""Sums of clipped gradients as fused CPU loops that never store a whole per-record gradient.

A record's gradient is an outer product, clipped and rounded to whole units. The sums are sums of
integers, so the order of addition does not matter. Records are processed in groups of four, so
that a sum is loaded and stored once per four products. If the neighbouring relation needs the
largest entries, those of each group are compared with thresholds, and the few that exceed them are
computed again and appended to buffers.

Each loop runs on one thread and releases the GIL: distances are bounded in parallel
(networks/loop.py), and the result does not depend on the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from torch import Tensor

UNITS = 4096
"""The clip in units: a clipped gradient entry is an integer between -UNITS and UNITS."""

MAX_BLOCK_RECORDS = 4096
"""The maximum number of records per block: their sums are exact in int32 and in float32."""

LOWEST = -UNITS - 1
"""A floor that is below every entry."""


def units(gradient: Tensor, limit: Any = UNITS) -> Tensor:
    """Clip a gradient given in units to +-limit and round it to integers.

    This is an increasing function, and the same one is applied to both ends.
    """
    return gradient.clamp(-limit, limit).round()


_GROUP = 4
_LANES = 8  # hit flags are one byte each and are tested eight at a time
_TILE = 128  # records whose inputs stay in the L2 cache while the loop runs over all outputs
_ROUNDING_CONSTANT = {np.dtype(np.float32): 1.5 * 2.0**23, np.dtype(np.float64): 1.5 * 2.0**52}
"""Added to a small number, it leaves the nearest integer (ties to even) in the lowest bits."""


@intrinsic
def _float_as_integer(context: Any, value: Any) -> Any:
    """Return the bits of a float as an integer of the same size."""
    result, kind = (
        (types.int32, ir.IntType(32)) if value == types.float32 else (types.int64, ir.IntType(64))
    )

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], kind)

    return result(value), generate


@njit(cache=True)
def _to_units(value, limit, constant):
    """Clip to +-limit and round to the nearest integer, ties to even.

    `limit` and `constant`, the rounding constant, have the type of `value`.
    """
    clipped = min(max(value, -limit), limit)
    return np.int32(_float_as_integer(clipped + constant) - _float_as_integer(constant))


@njit(cache=True)
def _entry(out_low, out_high, in_low, in_high, limit, constant):
    """Return the lower and the negated upper end of [out] * [in] in whole units."""
    a, b, c, d = out_low * in_low, out_low * in_high, out_high * in_low, out_high * in_high
    low, high = min(min(a, b), min(c, d)), max(max(a, b), max(c, d))
    return _to_units(low, limit, constant), np.int32(-_to_units(high, limit, constant))


@njit(cache=True)
def _point_entry(out_low, out_high, entry, limit, constant):
    """Return the same as `_entry` for a point [in], with half the products."""
    a, b = out_low * entry, out_high * entry
    return _to_units(min(a, b), limit, constant), np.int32(-_to_units(max(a, b), limit, constant))


@njit(cache=True)
def _keep_largest(buffer, size, keep):
    """Move the `keep` largest of the first `size` entries to the front.

    Return the smallest of them.
    """
    # Invariant: at least `keep` entries exceed `below`, and fewer than `keep` exceed `least`.
    below, least = np.int32(LOWEST), np.int32(UNITS)
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
def _add_group(outs, chosen, in_low, in_high, constant, sums, hits, largest, row):
    """Add four records' entries to one row of parameters, and flag entries above the thresholds.

    `outs` (3, 4) holds the ends of each record's factor for this row, padded with 0 if the group is
    incomplete, and its clip. `hits` flags the parameters whose largest entries may change.
    """
    a0, a1, a2, a3 = outs[0, 0], outs[0, 1], outs[0, 2], outs[0, 3]
    b0, b1, b2, b3 = outs[1, 0], outs[1, 1], outs[1, 2], outs[1, 3]
    l0, l1, l2, l3 = outs[2, 0], outs[2, 1], outs[2, 2], outs[2, 3]
    x0, x1, x2, x3 = in_low[chosen[0]], in_low[chosen[1]], in_low[chosen[2]], in_low[chosen[3]]
    if in_high is not None:
        y0, y1, y2, y3 = (
            in_high[chosen[0]],
            in_high[chosen[1]],
            in_high[chosen[2]],
            in_high[chosen[3]],
        )
    sums_low, sums_high = sums[0, row], sums[1, row]
    if largest is not None:
        threshold_low, threshold_high = largest[0][0, row], largest[0][1, row]
        hits_low, hits_high = hits[0], hits[1]
    for j in range(x0.shape[0]):
        if in_high is None:
            p0, q0 = _point_entry(a0, b0, x0[j], l0, constant)
            p1, q1 = _point_entry(a1, b1, x1[j], l1, constant)
            p2, q2 = _point_entry(a2, b2, x2[j], l2, constant)
            p3, q3 = _point_entry(a3, b3, x3[j], l3, constant)
        else:
            p0, q0 = _entry(a0, b0, x0[j], y0[j], l0, constant)
            p1, q1 = _entry(a1, b1, x1[j], y1[j], l1, constant)
            p2, q2 = _entry(a2, b2, x2[j], y2[j], l2, constant)
            p3, q3 = _entry(a3, b3, x3[j], y3[j], l3, constant)
        sums_low[j] += np.int32((p0 + p1) + (p2 + p3))
        sums_high[j] += np.int32((q0 + q1) + (q2 + q3))
        if largest is not None:
            hits_low[j] = max(max(p0, p1), max(p2, p3)) > threshold_low[j]
            hits_high[j] = max(max(q0, q1), max(q2, q3)) > threshold_high[j]


@njit(cache=True)
def _append_candidates(outs, filled, chosen, in_low, in_high, constant, hits, largest, row):
    """Append entries above their threshold to their buffers, and truncate full buffers."""
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
                        low, negated_high = _point_entry(
                            outs[0, r], outs[1, r], in_low[s, j], outs[2, r], constant
                        )
                    else:
                        low, negated_high = _entry(
                            outs[0, r],
                            outs[1, r],
                            in_low[s, j],
                            in_high[s, j],
                            outs[2, r],
                            constant,
                        )
                    value = low if end == 0 else negated_high
                    buffer[j, count[j]] = np.int16(value)
                    count[j] += value > threshold[j]
                if count[j] >= full:
                    threshold[j] = _keep_largest(buffer[j], count[j], keep)
                    count[j] = keep


@njit(cache=True)
def _add_chosen(outs, filled, chosen, in_low, in_high, constant, sums, hits, largest, row):
    outs[:2, filled:] = 0
    _add_group(outs, chosen, in_low, in_high, constant, sums, hits, largest, row)
    if largest is not None:
        _append_candidates(outs, filled, chosen, in_low, in_high, constant, hits, largest, row)


@njit(cache=True)
def _add_row(
    out_low, out_high, limits, tile, row, skip_zeros, in_low, in_high, constant, sums, hits, largest
):
    """Add the records from index `tile[0]` up to `tile[1]` to one row of parameters."""
    outs = np.zeros((3, _GROUP), out_low.dtype)
    chosen = np.zeros(_GROUP, np.int64)
    filled = 0
    for s in range(tile[0], tile[1]):
        if skip_zeros and out_low[s, row] == 0 and out_high[s, row] == 0:
            continue
        outs[0, filled], outs[1, filled] = out_low[s, row], out_high[s, row]
        outs[2, filled], chosen[filled] = limits[s], s
        filled += 1
        if filled == _GROUP:
            _add_chosen(outs, filled, chosen, in_low, in_high, constant, sums, hits, largest, row)
            filled = 0
    if filled:
        _add_chosen(outs, filled, chosen, in_low, in_high, constant, sums, hits, largest, row)


@njit(nogil=True, cache=True)
def _add_products(out_low, out_high, in_low, in_high, limits, constant, width, sums, largest):
    records, outputs = out_low.shape
    outs, ins = (out_low, out_high, limits), (in_low, in_high, constant)
    hits = np.zeros((2, width), np.int8)
    for start in range(0, records, _TILE):
        tile = (start, min(start + _TILE, records))
        for row in range(outputs):
            if largest is None:
                _add_row(*outs, tile, row, True, *ins, sums, hits, None)
                continue
            least = largest[0][:, row].min()
            if least == UNITS:  # all thresholds are at the clip, and no entry can exceed them
                _add_row(*outs, tile, row, True, *ins, sums, hits, None)
            else:  # a zero entry cannot exceed a nonnegative threshold
                _add_row(*outs, tile, row, least >= 0, *ins, sums, hits, largest)


@njit(cache=True)
def _sort(entries, size):
    """Sort the first `size` entries in ascending order; return at once if they are sorted."""
    for i in range(1, size):
        if entries[i] < entries[i - 1]:
            entries[:size] = np.sort(entries[:size])
            return


@njit(nogil=True, cache=True)
def _largest_sums(count, buffer, keep, wanted, sums):
    """Write the sums of the `wanted` largest entries, at most `keep`, to `sums`.

    Entries are sorted in place, so that the next call finds them sorted.
    """
    ends, rows, columns = sums.shape
    for row in range(rows):
        for end in range(ends):
            for j in range(columns):
                size = count[end, row, j]
                entries = buffer[end, row, j]
                if size > keep:
                    _keep_largest(entries, size, keep)
                    count[end, row, j] = keep  # entries beyond `keep` are stale
                    size = keep
                if wanted < size:
                    _sort(entries, size)
                total = 0
                for i in range(max(size - wanted, 0), size):
                    total += entries[i]
                sums[end, row, j] = total


@njit(nogil=True, cache=True)
def _merge(threshold, count, buffer, keep, other_count, other_buffer):
    """Append another selection's entries above the thresholds, and truncate full buffers."""
    full = buffer.shape[3] - _GROUP
    ends, rows, columns = count.shape
    for end in range(ends):
        for row in range(rows):
            for j in range(columns):
                entries, size = buffer[end, row, j], count[end, row, j]
                for i in range(other_count[end, row, j]):
                    value = other_buffer[end, row, j, i]
                    if value > threshold[end, row, j]:
                        entries[size] = value
                        size += 1
                        if size >= full:
                            threshold[end, row, j] = _keep_largest(entries, size, keep)
                            size = keep
                count[end, row, j] = size


def _padded(columns: int) -> int:
    return -(-columns // _LANES) * _LANES


@dataclass(frozen=True)
class LargestEntries:
    """Buffers of candidates for the `keep` largest entries, for both ends of every parameter.

    The selection is exact at any time. An entry enters its buffer only if it exceeds the threshold:
    the `keep`-th largest entry when the buffer was last truncated, and the floor before that.
    """

    keep: int
    columns: int
    threshold: np.ndarray
    count: np.ndarray
    buffer: np.ndarray

    @classmethod
    def start(cls, rows: int, columns: int, keep: int, floor: int) -> LargestEntries:
        shape = (2, rows, _padded(columns))
        threshold = np.full(shape, floor, np.int32)
        threshold[:, :, columns:] = UNITS  # padded columns are never flagged
        buffer = np.empty((*shape, max(2 * keep, 16) + _GROUP), np.int16)
        return cls(keep, columns, threshold, np.zeros(shape, np.int32), buffer)

    def sums(self, wanted: int) -> Tensor:
        """Return the sums of the `wanted` largest entries, at most `keep`: (2, rows, columns)."""
        sums = np.empty((2, self.buffer.shape[1], self.columns), np.float64)
        _largest_sums(self.count, self.buffer, self.keep, wanted, sums)
        return torch.from_numpy(sums)

    def merge(self, other: LargestEntries) -> None:
        """Add the entries of another selection, of other records of the same batch."""
        _merge(self.threshold, self.count, self.buffer, self.keep, other.count, other.buffer)


def add_gradients(
    out_low: Tensor,
    out_high: Tensor,
    in_low: Tensor,
    in_high: Tensor | None,
    totals: Tensor,
    largest: LargestEntries | None,
    limits: Tensor | None = None,
) -> None:
    """Add the records' outer products [out] x [in], in whole units, to `totals`.

    `totals` is (2, outputs, inputs): totals[0] sums the lower ends, totals[1] the *negated* upper
    ends. In both, the worst case is that the records with the largest entries are removed, so one
    selection (`largest`) serves both. If `in_high` is None, the inputs are points. `limits` are the
    clips of the records in whole units, at most UNITS; None: UNITS.
    """
    if len(out_low) > MAX_BLOCK_RECORDS:
        raise ValueError(
            f"{len(out_low)} records in a block: sums in int32 are exact up to "
            f"{MAX_BLOCK_RECORDS} records; split the block"
        )
    outs = [end.contiguous().numpy() for end in (out_low, out_high)]
    ins = [None if end is None else end.contiguous().numpy() for end in (in_low, in_high)]
    kind = outs[0].dtype
    clips = np.full(len(out_low), UNITS, kind) if limits is None else limits.numpy().astype(kind)
    sums = np.zeros(tuple(totals.shape), np.int32)
    state = (
        None
        if largest is None
        else (largest.threshold, largest.count, largest.buffer, largest.keep)
    )
    constant = kind.type(_ROUNDING_CONSTANT[kind])
    _add_products(*outs, *ins, clips, constant, _padded(in_low.shape[1]), sums, state)
    totals += torch.from_numpy(sums)
