"""Noise for the release of a head: a public grid, and a discrete Gaussian on it.

Weights are rounded to whole numbers of grid units before noise is added, so nothing that is
released depends on how a computer rounds sums of weights and noise (docs/theory/release.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..arrays import Floats
from ..errors import UnsoundBounds
from ..mechanisms.table import Entropy, draw_discrete_gaussian

_FINENESS = 64  # the sensitivity is at least 2^64 grid units, so that the grid costs nothing


@dataclass(frozen=True)
class Grid:
    """A grid of spacing 2^-exponent for a number of weights, and the sensitivity on it.

    Args:
        exponent: The binary exponent of the spacing.
        entries: The number of weights.
        sensitivity: The largest Euclidean distance, in grid units, between the rounded weights of
            neighbouring data sets.
    """

    exponent: int
    entries: int
    sensitivity: int

    @classmethod
    def of(cls, sensitivity: float, entries: int) -> Grid:
        """Return the grid for weights of which one move changes `entries` by `sensitivity`.

        Guarantees:
            Only public numbers are used. The result's sensitivity counts the rounding to the grid:
            half a unit per entry, in both data sets.
        """
        if not 0.0 < sensitivity < math.inf:
            raise UnsoundBounds(
                f"sensitivity={sensitivity!r}: expected a positive finite number; "
                "train the head again"
            )
        root = math.isqrt(entries - 1) + 1  # at least the square root
        exponent = _FINENESS + root.bit_length() - math.frexp(sensitivity)[1]
        exact = Fraction(sensitivity) * Fraction(2) ** exponent
        return cls(exponent, entries, math.ceil(exact) + root)

    @property
    def spacing(self) -> Fraction:
        return Fraction(2) ** -self.exponent

    def add_noise(self, weights: Floats, scale: int, entropy: Entropy) -> Floats:
        """Return the weights, rounded to the grid, plus a discrete Gaussian of `scale` grid units.

        Guarantees:
            All noise is drawn before the weights are looked at, and sums are exact. The result is
            the sum rounded to float64, so it is a function of the sum alone.
        """
        if weights.size != self.entries:
            raise UnsoundBounds(f"{weights.size} weights on a grid for {self.entries}")
        noise = [draw_discrete_gaussian(scale, entropy) for _ in range(self.entries)]
        sums = [
            round(Fraction(weight) / self.spacing) + number
            for weight, number in zip(weights.ravel().tolist(), noise, strict=True)
        ]
        return np.array([float(number * self.spacing) for number in sums]).reshape(weights.shape)

    def as_float(self, units: int) -> float:
        """Return a length in grid units as a float."""
        return float(units * self.spacing)
