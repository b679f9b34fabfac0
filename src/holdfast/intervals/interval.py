"""Intervals of tensors: a lower and an upper end for every element.

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

    An end that overflows is infinite or NaN, and stays so until `zero_overflowed_rows` sets its row
    to 0 and marks it. Finiteness is isotonic: the numbers between finite ends are finite.

    Guarantees:
        lower <= upper wherever both are numbers: construction raises otherwise.
    """

    lower: Tensor
    upper: Tensor

    def __post_init__(self) -> None:
        if self.lower.shape != self.upper.shape or self.lower.dtype != self.upper.dtype:
            raise UnsoundBounds(
                f"interval ends differ in kind: {_kind(self.lower)} and {_kind(self.upper)}; "
                "expected the same dtype and shape"
            )
        if self.lower is not self.upper:
            _refuse_crossed(self.lower, self.upper)

    @classmethod
    def point(cls, value: Tensor) -> Interval:
        """Return the interval that contains only `value`."""
        return cls(value, value)

    @property
    def shape(self) -> torch.Size:
        return self.lower.shape

    def map_increasing(self, increasing: Callable[[Tensor], Tensor]) -> Interval:
        """Apply the same increasing function to both ends; isotonic, and exact."""
        lower = increasing(self.lower)
        return Interval(lower, lower if self.lower is self.upper else increasing(self.upper))

    def map_entries(self, move: Callable[[Tensor], Tensor]) -> Interval:
        """Move or select entries of both ends; unchanged values need no new check."""
        result = object.__new__(Interval)
        lower = move(self.lower)
        object.__setattr__(result, "lower", lower)
        object.__setattr__(result, "upper", lower if self.lower is self.upper else move(self.upper))
        return result

    def zero_overflowed_rows(self) -> tuple[Interval, Bool[Tensor, " rows"]]:
        """Set rows with infinite or NaN ends to 0, and also return which rows were finite.

        The work is the same for every row.
        """
        lower, upper, finite = kernels.zero_overflowed_rows(self.lower, self.upper)
        return Interval(lower, lower if self.lower is self.upper else upper), finite

    def __neg__(self) -> Interval:
        return Interval(-self.upper, -self.lower)

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.lower + other.lower, self.upper + other.upper)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.lower - other.upper, self.upper - other.lower)

    def __mul__(self, other: Interval) -> Interval:
        """Return the element-wise product: the extremes of the four end-point products."""
        products = [a * b for a in (self.lower, self.upper) for b in (other.lower, other.upper)]
        low = torch.minimum(
            torch.minimum(products[0], products[1]), torch.minimum(products[2], products[3])
        )
        high = torch.maximum(
            torch.maximum(products[0], products[1]), torch.maximum(products[2], products[3])
        )
        return Interval(low, high)


def _kind(end: Tensor) -> str:
    return f"{end.dtype} {tuple(end.shape)}"


def _refuse_crossed(lower: Tensor, upper: Tensor) -> None:
    if not kernels.any_crossed(lower, upper):
        return
    where = tuple(int(i) for i in (lower > upper).nonzero()[0])
    raise UnsoundBounds(
        f"bounds crossed: lower={lower[where].item()}, upper={upper[where].item()} "
        f"at index {where}, expected lower <= upper; do not use anything computed from these bounds"
    )


def largest_parameter(dtype: torch.dtype) -> float:
    """Return the largest magnitude of a parameter; the difference of two stays finite."""
    return torch.finfo(dtype).max / 4


def mean_width(interval: Interval) -> float:
    """Return the mean width of an interval over its entries."""
    return float((interval.upper.double() - interval.lower.double()).mean())


class OperandKind(enum.Enum):
    """What the architecture guarantees about an operand.

    It affects the speed of a product, never the bits of the result.
    """

    POINT = "point"  # a record's own features: both ends are equal
    NONNEGATIVE = "nonnegative"  # the output of a ReLU, a sigmoid, a softplus
    ANY = "any"


def product(kind: OperandKind, left: Interval, right: Interval) -> Interval:
    """Return the interval of `a @ b` over all a in `left`, b in `right`.

    The operands are matrices, or stacks of them. Each end is the sum, in the order of the inner
    index, of the smallest (largest) of the four products of ends.

    Guarantees:
        Exact: each end is attained term by term. Isotonic as executed: the rounding of products is
        monotone, so are minimum and maximum, and the order of the sum is fixed.
        A row of the result depends only on that row of `left` and on `right`.
    """
    high = left.lower if kind is OperandKind.POINT else left.upper
    return Interval(
        *kernels.interval_product(
            left.lower, high, right.lower, right.upper, kind is OperandKind.NONNEGATIVE
        )
    )
