"""Interval: two tensors, element by element a lower and an upper end; and matrix products of intervals.

Products are exact end-point products, summed in one fixed order.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from .. import kernels
from ..errors import UnsoundBounds


@dataclass(frozen=True, eq=False)
class Interval:
    """All tensors t with lower <= t <= upper.

    A number that outgrew the float range is infinite or NaN, and stays so until `contained` takes its
    row out and marks it. "Finite" is isotonic: the numbers between finite ends are finite.

    Guarantees:
        lower <= upper wherever both are numbers: construction refuses anything else.
    """

    lower: Tensor
    upper: Tensor

    def __post_init__(self) -> None:
        if self.lower.shape != self.upper.shape or self.lower.dtype != self.upper.dtype:
            raise UnsoundBounds(f"interval ends differ in kind: {_kind(self.lower)} and {_kind(self.upper)}")
        if self.lower is not self.upper:
            _refuse_crossed(self.lower, self.upper)

    @classmethod
    def point(cls, value: Tensor) -> Interval:
        """The interval that holds one tensor only."""
        return cls(value, value)

    @property
    def shape(self) -> torch.Size:
        return self.lower.shape

    def both(self, increasing: Callable[[Tensor], Tensor]) -> Interval:
        """Apply one and the same increasing function to both ends (isotonic, and exact for such a function)."""
        lower = increasing(self.lower)
        return Interval(lower, lower if self.lower is self.upper else increasing(self.upper))

    def rearranged(self, move: Callable[[Tensor], Tensor]) -> Interval:
        """Move or select entries, both ends alike. No number changes, so nothing is checked again."""
        result = object.__new__(Interval)
        lower = move(self.lower)
        object.__setattr__(result, "lower", lower)
        object.__setattr__(result, "upper", lower if self.lower is self.upper else move(self.upper))
        return result

    def contained(self) -> tuple[Interval, Bool[Tensor, " rows"]]:
        """Set rows with infinite or NaN ends to 0, with the same work for every row; also return which were finite."""
        lower, upper, finite = kernels.contain(self.lower, self.upper)
        return Interval(lower, lower if self.lower is self.upper else upper), finite

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
    if not kernels.any_crossed(lower, upper):
        return
    where = tuple(int(i) for i in (lower > upper).nonzero()[0])
    raise UnsoundBounds(
        f"bounds crossed: lower={lower[where].item()}, upper={upper[where].item()} at index {where}, expected lower <= upper; "
        "nothing computed from these may be used"
    )


def largest_parameter(dtype: torch.dtype) -> float:
    """The largest size of a parameter: the difference of two of them is still finite."""
    return torch.finfo(dtype).max / 4


def mean_width(interval: Interval) -> float:
    """How wide an interval is, on average over its entries."""
    return float((interval.upper.double() - interval.lower.double()).mean())


class Kind(enum.Enum):
    """What the architecture says about an operand. It decides how fast a product is, never its bits."""

    POINT = "point"  # a record's own features: both ends equal
    NONNEGATIVE = "nonnegative"  # the output of a ReLU, a sigmoid, a softplus
    ANY = "any"


def product(kind: Kind, left: Interval, right: Interval) -> Interval:
    """Return the interval of `a @ b` over all a in `left`, b in `right`: matrices, or stacks of them.

    Each end is the sum, in the order of the inner index, of the smallest (largest) of the four products
    of ends.

    Guarantees:
        Exact: each end is attained term by term. Isotonic as executed: products are rounded
        monotonically, their minimum and maximum too, and the order of the sum depends on nothing.
        A row of the result depends on that row of `left` and on `right` alone.
    """
    high = left.lower if kind is Kind.POINT else left.upper
    return Interval(*kernels.interval_product(left.lower, high, right.lower, right.upper, kind is Kind.NONNEGATIVE))
