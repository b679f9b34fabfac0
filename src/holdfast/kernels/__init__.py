"""Arithmetic that sums over features or records: fused loops with a fixed order of addition.

Every loop has a plain twin with the same results, bit for bit, in the tests. Gradients are passed
in units of clip / UNITS, so that clipping is a clamp to +-UNITS and rounding is to integers; sums
of integers are exact in any order (docs/theory/floating-point.md).
"""

from __future__ import annotations

from torch import Tensor

from .gradients import LOWEST, MAX_BLOCK_RECORDS, UNITS, LargestEntries, add_gradients, units
from .products import (
    any_crossed,
    interval_product,
    require_ieee,
    slope_product,
    zero_overflowed_rows,
)

__all__ = [
    "LOWEST",
    "MAX_BLOCK_RECORDS",
    "UNITS",
    "LargestEntries",
    "add_gradients",
    "any_crossed",
    "interval_product",
    "ordered_matmul",
    "ordered_sum",
    "require_ieee",
    "slope_product",
    "units",
    "zero_overflowed_rows",
]


def ordered_matmul(left: Tensor, right: Tensor) -> Tensor:
    """Return `left @ right`, each entry summed in the order of the inner index."""
    return interval_product(left, left, right, right)[0]


def ordered_sum(terms: Tensor) -> Tensor:
    """Return the sum over the last dimension, added one entry after the other."""
    total = terms[..., 0]
    for index in range(1, terms.shape[-1]):
        total = total + terms[..., index]
    return total
