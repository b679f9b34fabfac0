"""Matrix products of intervals: exact end-point products, summed in one fixed order."""

from __future__ import annotations

import enum

from .. import kernels
from .interval import Interval


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
