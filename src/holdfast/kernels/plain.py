"""The kernels in plain torch: short and obvious; the oracle of the fused ones, and what other devices run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .units import units

_ENTRIES = 2**24  # how many products to hold at once


def interval_matmul(left_low: Tensor, left_high: Tensor, right_low: Tensor, right_high: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over the inner index, in its order, of the smallest and largest of the four end-point products."""
    low = left_low.new_zeros(*left_low.shape[:-1], right_low.shape[-1])
    high = low.clone()
    for inner in range(left_low.shape[-1]):
        lefts = [end[..., :, inner, None] for end in (left_low, left_high)]
        rights = [end[..., None, inner, :] for end in (right_low, right_high)]
        products = torch.stack([left * right for left in lefts for right in rights])
        low = low + products.amin(0)
        high = high + products.amax(0)
    return low, high


def ordered_matmul(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right`, adding over the inner index in its order."""
    result = left.new_zeros(*left.shape[:-1], right.shape[-1])
    for inner in range(left.shape[-1]):
        result = result + left[..., :, inner, None] * right[..., None, inner, :]
    return result


@dataclass
class Largest:
    """The `keep` largest entries seen so far, for both ends of every parameter; entries below `floor` never enter."""

    keep: int
    values: Tensor  # (held, 2, rows, columns), largest first

    @classmethod
    def start(cls, rows: int, columns: int, keep: int, floor: int, like: Tensor) -> Largest:
        held = keep if floor == 0 else 0
        return cls(keep, like.new_zeros(held, 2, rows, columns, dtype=torch.float64))

    def offer(self, values: Tensor) -> None:
        pool = torch.cat([self.values, values.double()])
        self.values = pool.topk(min(self.keep, len(pool)), dim=0).values

    def sums(self, wanted: int) -> Tensor:
        """(2, rows, columns): the sums of the `wanted` largest, at most `keep`."""
        return self.values[:wanted].sum(0)


def absorb_outer(
    out_low: Tensor, out_high: Tensor, in_low: Tensor, in_high: Tensor | None, count: int, totals: Tensor, largest: Largest | None
) -> None:
    """Add the first `count` records' outer products [out] x [in], in whole units, to `totals` (2, outputs, inputs).

    totals[0] sums the lower ends, totals[1] the *negated* upper ends: in both, larger means worse for whoever departs,
    so that one selection (`largest`) serves both. `in_high` None means that the inputs are points.
    """
    in_high = in_low if in_high is None else in_high
    step = max(1, _ENTRIES // totals.numel())
    for first in range(0, count, step):
        part = slice(first, min(first + step, count))
        outs = [end[part, :, None] for end in (out_low, out_high)]
        ins = [end[part, None, :] for end in (in_low, in_high)]
        products = torch.stack([out * entry for out in outs for entry in ins])
        values = torch.stack([units(products.amin(0)), -units(products.amax(0))], dim=1)
        totals += values.sum(0, dtype=torch.float64)
        if largest is not None:
            largest.offer(values)
