"""Rényi arithmetic: the divergence that a budget allows, what answers cost, and the best order.

Bounds that a proof relies on are decimals rounded to the safe side (`renyi_budget`,
`response_divergence`, `moment_above`). The order of a budgeted response is chosen in floats, from
public numbers alone: any order gives a private table, and the choice only decides how good it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from .arithmetic import ABOVE, BELOW, exp_above, exp_below, ln_above, ln_below
from .budget import ApproximateGuarantee, Budget, as_decimal

TARGET = 0.01
"""The best order is the one whose flip probability falls below this at the smallest distance."""

ORDERS = np.round(1.0 + 2.0 ** (np.arange(-32, 201) / 8.0), 4)
_LONGEST = 400  # maximum number of rows, after which the ranking of orders is stable
_FLOOR = -100.0  # logarithm of a number below any row
_Floats = NDArray[np.float64]
_Moment = Callable[[_Floats], _Floats]


@lru_cache(maxsize=256)
def best_order(budget: Budget, queries: int) -> float:
    """Return the order whose flip probability falls below TARGET at the smallest distance.

    If there are several, the one with the smallest flip probability at that distance is returned.
    """
    orders = ORDERS
    budgets = (
        budget.epsilon
        - np.log((orders - 1) / orders)
        + (np.log(budget.delta) + np.log(orders)) / (orders - 1)
    )
    useful = budgets > 0
    if not useful.any():
        raise InvalidInput(
            f"the budget {budget} is too small to be spent at any Rényi order; "
            "raise epsilon or delta"
        )
    orders, costs = orders[useful], budgets[useful] / queries
    rows = _smallest_log_row(orders, costs, _first_moment(orders, 2), math.log(0.5))
    for _ in range(_LONGEST):
        if rows.min() < math.log(TARGET):
            break
        rows = _smallest_log_row(orders, costs, _following_moment(orders, rows), rows)
    return float(orders[rows.argmin()])


def first_row(order: Decimal, cost: Decimal, classes: int) -> float:
    """Return the logarithm of the first row of a table, to float accuracy."""
    orders = np.array([float(order)])
    return float(
        _smallest_log_row(
            orders,
            np.array([float(cost)]),
            _first_moment(orders, classes),
            math.log((classes - 1) / classes),
        )[0]
    )


def following_row(order: Decimal, cost: Decimal, row: float) -> float:
    """Return the logarithm of the row after the one whose logarithm is `row`, to float accuracy."""
    orders, rows = np.array([float(order)]), np.array([row])
    return float(
        _smallest_log_row(orders, np.array([float(cost)]), _following_moment(orders, rows), rows)[0]
    )


def _smallest_log_row(
    orders: _Floats, costs: _Floats, moment: _Moment, top: _Floats | float
) -> _Floats:
    """Return, per order, the logarithm of the smallest row whose moment is within the cost.

    Rows up to `top` (a logarithm) are searched by bisection, for all orders at once.
    """
    limit = (orders - 1) * costs
    low, high = np.full(len(orders), _FLOOR), np.zeros(len(orders)) + top
    for _ in range(60):
        middle = (low + high) / 2
        fits = moment(middle) <= limit
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return high


def _first_moment(orders: _Floats, classes: int) -> _Moment:
    """Return a function from row 0 to the log moment between answers with different labels.

    The probabilities of these two labels are exchanged; those of the other labels are equal. The
    row is given as a logarithm.
    """

    def moment(row: _Floats) -> _Floats:
        kept, led = np.log1p(-np.exp(row)), row - math.log(classes - 1)
        swapped = np.logaddexp(
            orders * kept + (1 - orders) * led, orders * led + (1 - orders) * kept
        )
        return swapped if classes == 2 else np.logaddexp(swapped, math.log(classes - 2) + led)

    return moment


def _following_moment(orders: _Floats, rows: _Floats) -> _Moment:
    """Return a function from later rows to their log moment with `rows`, for the same label.

    The moment is the larger of the two directions. All rows are given as logarithms.
    """
    kept = np.log1p(-np.exp(rows))

    def moment(later: _Floats) -> _Floats:
        later_kept = np.log1p(-np.exp(later))
        forth = np.logaddexp(
            orders * rows + (1 - orders) * later, orders * kept + (1 - orders) * later_kept
        )
        back = np.logaddexp(
            orders * later + (1 - orders) * rows, orders * later_kept + (1 - orders) * kept
        )
        return np.maximum(forth, back)

    return moment


COST_UNIT = 2.0**-40
"""Costs are whole multiples of this, so that the charges of all queries add up without rounding."""


def renyi_budget(epsilon: Decimal, delta: Decimal, order: float) -> Decimal:
    """Return a lower bound on the Rényi divergence of this order that (epsilon, delta) allows.

    The conversion is that of Canonne, Kamath and Steinke (2020).
    """
    a = Decimal(order)
    shrink = ABOVE.subtract(ln_above(minus_one(a)), ln_below(a))
    fail = BELOW.add(ln_below(delta), ln_below(a))
    return BELOW.add(BELOW.subtract(epsilon, shrink), BELOW.divide(fail, minus_one(a)))


def response_divergence(guarantee: ApproximateGuarantee, order: float) -> Decimal:
    """Return an upper bound on the Rényi divergence of any epsilon-private answer.

    It is the divergence of randomised response, of which every epsilon-private answer is a
    function. With a delta the same holds except for an event of that probability, which is counted
    separately.
    """
    epsilon, a = as_decimal(guarantee.epsilon), Decimal(order)
    one = Decimal(1)
    forth = ABOVE.multiply(a, epsilon)
    back = exp_above(ABOVE.multiply(ABOVE.subtract(one, ABOVE.add(a, a)), epsilon))
    whole = ln_below(BELOW.add(one, exp_below(epsilon)))
    moment = ABOVE.subtract(ABOVE.add(forth, ln_above(ABOVE.add(one, back))), whole)
    return min(epsilon, ABOVE.divide(moment, minus_one(a)))


def moment_above(pairs: Iterable[tuple[int, int]], order: Decimal) -> Decimal:
    """Return an upper bound on the sum of p^a q^(1-a) over pairs of integers (p, q).

    The order a must be above 1. The bound is infinite if q = 0 < p for some pair.
    """
    total = Decimal(0)
    for p, q in pairs:
        total = ABOVE.add(total, _power_above(p, q, order))
    return total


def _power_above(p: int, q: int, order: Decimal) -> Decimal:
    if p == q or p == 0:
        return Decimal(p)
    if q == 0:
        return Decimal("Infinity")
    gain = ABOVE.multiply(order, ln_above(Decimal(p)))
    loss = BELOW.multiply(minus_one(order), ln_below(Decimal(q)))
    return exp_above(ABOVE.subtract(gain, loss))


def minus_one(order: Decimal) -> Decimal:
    """Return order - 1, without rounding.

    An order is a float from 1 to 2^30, which has at most 62 digits, so the result is exact.
    """
    return BELOW.subtract(order, Decimal(1))
