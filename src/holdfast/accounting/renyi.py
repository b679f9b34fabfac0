"""The Renyi order of a budgeted response: chosen from public numbers, in floats, before anything is seen.

Any order gives a private table; the choice only decides how good it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from . import Budget

TARGET = 0.01
"""Flips are to be rarer than this, from as small a distance on as possible."""

ORDERS = np.round(1.0 + 2.0 ** (np.arange(-32, 201) / 8.0), 4)
_LONGEST = 400  # rows; by then the orders' ranking no longer changes
_FLOOR = -100.0  # ln of less than any row
_Floats = NDArray[np.float64]
_Moment = Callable[[_Floats], _Floats]


@lru_cache(maxsize=256)
def best_order(budget: Budget, queries: int) -> float:
    """The order whose table first flips less than TARGET; of several, the one that then flips least."""
    orders = ORDERS
    budgets = budget.epsilon - np.log((orders - 1) / orders) + (np.log(budget.delta) + np.log(orders)) / (orders - 1)
    useful = budgets > 0
    if not useful.any():
        raise InvalidInput(f"the budget {budget} is too small to be spent at any Renyi order; raise epsilon or delta")
    orders, costs = orders[useful], budgets[useful] / queries
    rows = _lowest(orders, costs, _first_moment(orders, 2), math.log(0.5))
    for _ in range(_LONGEST):
        if rows.min() < math.log(TARGET):
            break
        rows = _lowest(orders, costs, _following_moment(orders, rows), rows)
    return float(orders[rows.argmin()])


def first_row(order: Decimal, cost: Decimal, classes: int) -> float:
    """ln of the table's first row, to float accuracy."""
    orders = np.array([float(order)])
    return float(_lowest(orders, np.array([float(cost)]), _first_moment(orders, classes), math.log((classes - 1) / classes))[0])


def following_row(order: Decimal, cost: Decimal, row: float) -> float:
    """ln of the row after that of which `row` is the ln, to float accuracy."""
    orders, rows = np.array([float(order)]), np.array([row])
    return float(_lowest(orders, np.array([float(cost)]), _following_moment(orders, rows), rows)[0])


def _lowest(orders: _Floats, costs: _Floats, moment: _Moment, top: _Floats | float) -> _Floats:
    """ln of the smallest row below `top` whose ln moment is within the cost, by bisection, for all orders at once."""
    limit = (orders - 1) * costs
    low, high = np.full(len(orders), _FLOOR), np.zeros(len(orders)) + top
    for _ in range(60):
        middle = (low + high) / 2
        fits = moment(middle) <= limit
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return high


def _first_moment(orders: _Floats, classes: int) -> _Moment:
    """Between two rows of distance 0 with different labels: two answers change places, the other labels keep theirs."""

    def moment(row: _Floats) -> _Floats:
        kept, led = np.log1p(-np.exp(row)), row - math.log(classes - 1)
        swapped = np.logaddexp(orders * kept + (1 - orders) * led, orders * led + (1 - orders) * kept)
        return swapped if classes == 2 else np.logaddexp(swapped, math.log(classes - 2) + led)

    return moment


def _following_moment(orders: _Floats, rows: _Floats) -> _Moment:
    """Between a row and a later one of the same label, the larger of both directions."""
    kept = np.log1p(-np.exp(rows))

    def moment(later: _Floats) -> _Floats:
        later_kept = np.log1p(-np.exp(later))
        forth = np.logaddexp(orders * rows + (1 - orders) * later, orders * kept + (1 - orders) * later_kept)
        back = np.logaddexp(orders * later + (1 - orders) * rows, orders * later_kept + (1 - orders) * kept)
        return np.maximum(forth, back)

    return moment
