"""Loops that decide the speed: fused on the CPU (numba), plain torch elsewhere.

Both modules offer the same functions with the same results, bit for bit; the plain one is the oracle in the tests.
Gradients arrive measured in units of clip / UNITS, so that clipping is a clamp to +-UNITS and rounding is to whole
numbers; sums of whole numbers are exact, whatever their order (docs/theory/floating-point.md).
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from . import fused, plain
from .units import BLOCK, LOWEST, UNITS, units

__all__ = ["BLOCK", "LOWEST", "UNITS", "backend", "interval_matmul", "ordered_matmul", "units"]


def backend(device: torch.device) -> ModuleType:
    """The module of kernels for a device."""
    return fused if device.type == "cpu" else plain


def interval_matmul(left_low: Tensor, left_high: Tensor, right_low: Tensor, right_high: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper end of the product of two interval matrices (or stacks of them)."""
    result: tuple[Tensor, Tensor] = backend(left_low.device).interval_matmul(left_low, left_high, right_low, right_high)
    return result


def ordered_matmul(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` of matrices (or stacks of them), each entry summed in the order of the inner index."""
    result: Tensor = backend(left.device).ordered_matmul(left, right)
    return result
