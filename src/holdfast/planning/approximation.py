"""Fast approximations of `BudgetedResponse`, for plans that compare many budgets and queries.

Exact tables are built row by row with directed rounding, which takes minutes if there are many
thousands of rows. A plan needs only a few digits. If rows change slowly, the number of rows until a
probability is reached is an integral over the logarithm of its odds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache

import numpy as np

from ..accounting import Budget
from ..accounting.renyi import first_row, following_row
from ..arrays import Floats, Integers
from ..certificates import Certificate
from ..heads.linear_recipe import needed_distance
from ..mechanisms import BudgetedResponse

_SLOW = 0.05  # change of the log odds per row below which rows are integrated over
_END = 18.0  # log odds beyond which noise never matters
_POINTS = 160


def approximate_accuracy(
    certificate: Certificate, right: Integers, budget: Budget, queries: int
) -> float:
    """Return about the expected accuracy of `BudgetedResponse`, within about 0.001."""
    flips = flip_probability(budget, queries, certificate.classes, certificate.distances.numpy())
    true = certificate.labels.numpy() == right
    wrong = flips / (certificate.classes - 1)
    return float(np.where(true, 1.0 - flips, wrong).mean())


def approximate_distance(budget: Budget, queries: int, classes: int, flips: float = 0.01) -> int:
    """Return about how stable a label must be for noise to change its answer this rarely."""
    if budget.delta == 0.0:
        return needed_distance(budget, queries, classes)
    places, log_odds = _curve(budget, queries, classes)
    return math.ceil(np.interp(math.log((1.0 - flips) / flips), log_odds, places) - 1e-6)


def flip_probability(budget: Budget, queries: int, classes: int, distances: Integers) -> Floats:
    """Return about how often a label at each distance is not answered."""
    places, log_odds = _curve(budget, queries, classes)
    return 1.0 / (1.0 + np.exp(np.interp(distances, places, log_odds)))


@lru_cache(maxsize=512)
def _curve(budget: Budget, queries: int, classes: int) -> tuple[Floats, Floats]:
    """Return distances, and the log odds of the true label at them."""
    mechanism = BudgetedResponse(budget, queries)
    order, cost = Decimal(mechanism.order or 0.0), Decimal(mechanism.cost)

    def step(odds: float) -> float:
        """Return the change of the log odds from one row to the next."""
        row = -math.log1p(math.exp(odds))
        return _log_odds(following_row(order, cost, row)) - odds

    start = _log_odds(first_row(order, cost, classes))
    if start >= _END or step(start) > _SLOW:
        return _rows(start, step)
    odds = start + (_END - start) * np.linspace(0.0, 1.0, _POINTS) ** 2
    rates = 1.0 / np.maximum([step(each) for each in odds], 1e-300)
    places = np.concatenate([[0.0], np.cumsum(np.diff(odds) * (rates[1:] + rates[:-1]) / 2)])
    return places, odds


def _rows(odds: float, step: Callable[[float], float]) -> tuple[Floats, Floats]:
    found = [odds]
    while found[-1] < _END:
        found.append(found[-1] + step(found[-1]))
    return np.arange(len(found), dtype=np.float64), np.array(found)


def _log_odds(log_flip: float) -> float:
    """Return the log odds of the true label, given the logarithm of its flip probability."""
    return math.log(-math.expm1(log_flip)) - log_flip
