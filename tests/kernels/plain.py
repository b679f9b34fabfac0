"""The kernels in plain torch: short and obvious oracles of the fused loops."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.kernels import UNITS, units

_ENTRIES = 2**24  # products held in memory at once


def interval_product(
    left_low: Tensor,
    left_high: Tensor,
    right_low: Tensor,
    right_high: Tensor,
    left_nonnegative: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the lower and upper end of the product of two interval matrices, or stacks of them.

    Each end is the sum over the inner index, in its order, of the smallest (largest) of the four
    products of ends.
    """
    low = left_low.new_zeros(*left_low.shape[:-1], right_low.shape[-1])
    high = low.clone()
    for inner in range(left_low.shape[-1]):
        lefts = [end[..., :, inner, None] for end in (left_low, left_high)]
        rights = [end[..., None, inner, :] for end in (right_low, right_high)]
        products = torch.stack([left * right for left in lefts for right in rights])
        low = low + products.amin(0)
        high = high + products.amax(0)
    return low, high


@dataclass
class LargestEntries:
    """The `keep` largest entries so far, for both ends of every parameter.

    Entries below `floor` count as `floor`.
    """

    keep: int
    shape: tuple[int, int, int]
    floor: int
    values: Tensor | None = None  # (held, 2, rows, columns), largest first

    @classmethod
    def start(cls, rows: int, columns: int, keep: int, floor: int) -> LargestEntries:
        return cls(keep, (2, rows, columns), floor)

    def offer(self, values: Tensor) -> None:
        """Add the entries of some records to the selection."""
        entries = values.double().clamp(min=self.floor)
        pool = entries if self.values is None else torch.cat([self.values, entries])
        self.values = pool.topk(min(self.keep, len(pool)), dim=0).values

    def merge(self, other: LargestEntries) -> None:
        """Add the entries of another selection, of other records of the same batch."""
        if other.values is not None:
            self.offer(other.values)

    def sums(self, wanted: int) -> Tensor:
        """Return the sums of the `wanted` largest entries, at most `keep`: (2, rows, columns)."""
        if self.values is None:
            return torch.zeros(self.shape, dtype=torch.float64)
        return self.values[:wanted].sum(0)


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
    in_high = in_low if in_high is None else in_high
    limits = out_low.new_full((len(out_low),), UNITS) if limits is None else limits
    step = max(1, _ENTRIES // totals.numel())
    for first in range(0, len(out_low), step):
        part = slice(first, first + step)
        outs = [end[part, :, None] for end in (out_low, out_high)]
        ins = [end[part, None, :] for end in (in_low, in_high)]
        products = torch.stack([out * entry for out in outs for entry in ins])
        limit = limits[part, None, None].to(products.dtype)
        ends = units(products.amin(0), limit), -units(products.amax(0), limit)
        values = torch.stack(ends, dim=1)
        totals += values.sum(0, dtype=torch.float64)
        if largest is not None:
            largest.offer(values)
