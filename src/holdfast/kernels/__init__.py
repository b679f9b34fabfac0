"""Arithmetic that sums over features or records: fused loops on the CPU, plain torch elsewhere.

Every fused loop has a plain twin with the same results, bit for bit: `products` and `gradients`
are the fast paths; `plain` is the reference in the tests and the implementation on other devices.
Gradients are passed in units of clip / UNITS, so that clipping is a clamp to +-UNITS and rounding
is to integers; sums of integers are exact in any order (docs/theory/floating-point.md).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import gradients, plain, products
from .plain import LOWEST, MAX_BLOCK_RECORDS, UNITS, units
from .products import any_crossed, require_ieee, slope_product, zero_overflowed_rows

__all__ = [
    "LOWEST",
    "MAX_BLOCK_RECORDS",
    "UNITS",
    "add_gradients",
    "any_crossed",
    "interval_product",
    "largest_entries",
    "ordered_matmul",
    "ordered_sum",
    "require_ieee",
    "slope_product",
    "units",
    "zero_overflowed_rows",
]


def interval_product(
    left_low: Tensor,
    left_high: Tensor,
    right_low: Tensor,
    right_high: Tensor,
    left_nonnegative: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the lower and upper end of the product of two interval matrices, or stacks of them."""
    run = products.interval_product if left_low.device.type == "cpu" else plain.interval_product
    return run(left_low, left_high, right_low, right_high, left_nonnegative)


def ordered_matmul(left: Tensor, right: Tensor) -> Tensor:
    """Return `left @ right`, each entry summed in the order of the inner index."""
    return interval_product(left, left, right, right)[0]


def ordered_sum(terms: Tensor) -> Tensor:
    """Return the sum over the last dimension, added one entry after the other."""
    total = terms[..., 0]
    for index in range(1, terms.shape[-1]):
        total = total + terms[..., index]
    return total


def add_gradients(
    out_low: Tensor,
    out_high: Tensor,
    in_low: Tensor,
    in_high: Tensor | None,
    totals: Tensor,
    largest: Any,
    limits: Tensor | None = None,
) -> None:
    """Add the records' outer products [out] x [in] to `totals`; see `plain.add_gradients`."""
    run: Any = gradients.add_gradients if totals.device.type == "cpu" else plain.add_gradients
    run(out_low, out_high, in_low, in_high, totals, largest, limits)


def largest_entries(rows: int, columns: int, keep: int, floor: int, device: torch.device) -> Any:
    """Return an empty selection of the `keep` largest entries above `floor`, per parameter end."""
    kind: Any = gradients.LargestEntries if device.type == "cpu" else plain.LargestEntries
    return kind.start(rows, columns, keep, floor)
