"""The grid on which gradients are summed."""

from __future__ import annotations

from torch import Tensor

UNITS = 4096
"""The clip in units: a clipped gradient entry is a whole number between -UNITS and UNITS."""

BLOCK = 4096
"""Most records in a block: their sums fit into 32 bits, as whole numbers and as float32 alike."""

LOWEST = -UNITS - 1
"""A floor below every entry."""


def units(gradient: Tensor) -> Tensor:
    """Clip and round a gradient that is measured in units: one increasing function, applied to every end alike."""
    return gradient.clamp(-UNITS, UNITS).round()
