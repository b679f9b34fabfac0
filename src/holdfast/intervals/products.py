"""Matrix products of intervals: exact end-point products, one rule for each kind of left operand.

The kind of an operand follows from the architecture alone, never from values: a switch that looks at the data could
use a loose rule for one data set and a tight one for its neighbour, and boxes would no longer nest.
"""

from __future__ import annotations

import enum

from .. import kernels
from .exact import matmul
from .interval import Interval


class Kind(enum.Enum):
    """What the architecture says about an operand."""

    POINT = "point"  # a record's own features: both ends equal
    NONNEGATIVE = "nonnegative"  # the output of a ReLU, a sigmoid, a softplus
    ANY = "any"


def product(kind: Kind, left: Interval, right: Interval) -> Interval:
    """The interval of `a @ b` over all a in `left`, b in `right`; `left` is of the given kind, `right` of any.

    Matrices, or stacks of matrices. With lower and upper ends l, u, positive part + and negative part -:

        POINT        [ l+ @ bl + l- @ bu ,  l+ @ bu + l- @ bl ]
        NONNEGATIVE  [ l @ bl+ + u @ bl- ,  u @ bu+ + l @ bu- ]
        ANY          sums of the smallest and of the largest of the four end-point products

    Guarantees
    ----------
    Exact: each end is attained term by term. Isotonic as executed: every product has operands of known sign or is the
    minimum of rounded end-point products, and `matmul` adds in an order that depends on shapes only.
    """
    if kind is Kind.POINT:
        positive, negative = left.positive.lower, left.negative.lower
        return Interval(
            matmul(positive, right.lower) + matmul(negative, right.upper),
            matmul(positive, right.upper) + matmul(negative, right.lower),
        )
    if kind is Kind.NONNEGATIVE:
        above, below = right.positive, right.negative
        return Interval(
            matmul(left.lower, above.lower) + matmul(left.upper, below.lower),
            matmul(left.upper, above.upper) + matmul(left.lower, below.upper),
        )
    return Interval(*kernels.interval_matmul(left.lower, left.upper, right.lower, right.upper))
