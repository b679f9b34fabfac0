"""Interval: two tensors, element by element a lower and an upper end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..errors import Overflow, UnsoundBounds


@dataclass(frozen=True, eq=False)
class Interval:
    """All tensors t with lower <= t <= upper.

    Guarantees
    ----------
    lower <= upper everywhere, and both are finite: construction refuses anything else. A product of finite ends that
    overflows is caught where its result becomes an interval, so no kernel ever sees infinity times zero.
    """

    lower: Tensor
    upper: Tensor

    def __post_init__(self) -> None:
        if self.lower.shape != self.upper.shape or self.lower.dtype != self.upper.dtype:
            raise UnsoundBounds(f"interval ends differ in kind: {_kind(self.lower)} and {_kind(self.upper)}")
        _refuse_crossed(self.lower, self.upper)

    @classmethod
    def point(cls, value: Tensor) -> Interval:
        """The interval that holds one tensor only."""
        return cls(value, value)

    @property
    def shape(self) -> torch.Size:
        return self.lower.shape

    @cached_property
    def positive(self) -> Interval:
        """Both ends with their negative entries set to zero."""
        return self.both(lambda end: end.clamp(min=0))

    @cached_property
    def negative(self) -> Interval:
        """Both ends with their positive entries set to zero."""
        return self.both(lambda end: end.clamp(max=0))

    def both(self, increasing: Callable[[Tensor], Tensor]) -> Interval:
        """Apply one and the same increasing function to both ends (isotonic, and exact for such a function)."""
        lower = increasing(self.lower)
        return Interval(lower, lower if self.lower is self.upper else increasing(self.upper))

    def __neg__(self) -> Interval:
        return Interval(-self.upper, -self.lower)

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.lower + other.lower, self.upper + other.upper)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.lower - other.upper, self.upper - other.lower)

    def __mul__(self, other: Interval) -> Interval:
        """Element-wise product: the smallest and largest of the four end-point products."""
        products = [a * b for a in (self.lower, self.upper) for b in (other.lower, other.upper)]
        low = torch.minimum(torch.minimum(products[0], products[1]), torch.minimum(products[2], products[3]))
        high = torch.maximum(torch.maximum(products[0], products[1]), torch.maximum(products[2], products[3]))
        return Interval(low, high)


def _kind(end: Tensor) -> str:
    return f"{end.dtype} {tuple(end.shape)}"


def _refuse_crossed(lower: Tensor, upper: Tensor) -> None:
    if not lower.numel():
        return
    least, most = lower.amin(), upper.amax()  # NaN if any entry is
    if not bool((least > -torch.inf) & (most < torch.inf)):
        raise Overflow(
            f"bounds have outgrown {lower.dtype}: lower ends down to {least.item()}, upper ends up to {most.item()}; "
            "lower the learning rate or the number of steps, or rescale the features"
        )
    if lower is upper:
        return
    ordered = lower <= upper
    if not bool(ordered.all()):
        where = tuple(int(i) for i in (~ordered).nonzero()[0])
        raise UnsoundBounds(
            f"bounds crossed: lower={lower[where].item()}, upper={upper[where].item()} at index {where}, expected lower <= upper; "
            "nothing computed from these may be used"
        )


def mean_width(interval: Interval) -> float:
    """How wide an interval is, on average over its entries."""
    return float((interval.upper.double() - interval.lower.double()).mean())
