"""Rényi arithmetic: divergences of answers and of Gaussian noise, and meters that count budgets.

Bounds that a proof relies on are decimals rounded to the safe side (`renyi_budget`,
`response_divergence`, `moment_above`). The order of a budgeted response is chosen in floats, from
public numbers alone: any order gives a private table, and the choice only decides how good it is.

A vector of integers is released with a discrete Gaussian added to each entry. `sensitivity` is the
Euclidean distance between the vectors of neighbouring data sets and `scale` the parameter of the
noise, both whole numbers, in units of the same grid. All bounds are rounded to the safe side
(docs/theory/release.md).

A budget with delta = 0 is counted in epsilon. A budget with delta > 0 is counted in Rényi
divergence at one public order, so that answers of different costs, chosen adaptively, may be added
up (docs/theory/ledger.md); a part of its delta may be set aside for mechanisms that have a delta of
their own. Limits are rounded down, prices up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from .arithmetic import (
    ABOVE,
    BELOW,
    exp_above,
    exp_below,
    largest_integer,
    ln_above,
    ln_below,
    round_down,
    round_up,
)
from .budget import (
    ApproximateGuarantee,
    Budget,
    Guarantee,
    RenyiGuarantee,
    as_decimal,
    decimal_at_most,
)

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


_BITS = 1024  # of the interval arithmetic, far more than the cancellation in delta takes
_LEAST_NOISE = 2**10  # sensitivity in deviations from which on delta is not evaluated: it is near 1
_TINY = -4096  # the binary exponent below which a delta is rounded up to 2^_TINY


@lru_cache(maxsize=256)
def best_release_order(budget: Budget) -> float:
    """Return the Rényi order at which a budget allows a Gaussian release with the least noise.

    Raises:
        InvalidInput: If the budget has no delta, or allows nothing at any order.
    """
    require_delta(budget)
    shrink = np.log((ORDERS - 1) / ORDERS)
    fail = (math.log(budget.delta) + np.log(ORDERS)) / (ORDERS - 1)
    allowed = budget.epsilon - shrink + fail
    if not (allowed > 0.0).any():
        raise InvalidInput(
            f"the budget {budget} is too small to be spent at any Rényi order; "
            "raise epsilon or delta"
        )
    return float(ORDERS[np.argmax(allowed / ORDERS)])


def require_delta(budget: Budget) -> None:
    """Raise InvalidInput if the budget has no delta, which Gaussian noise needs."""
    if budget.delta == 0.0:
        raise InvalidInput(
            f"{budget}: a release adds Gaussian noise, which needs a delta above 0; "
            "grant a budget with a delta, for example hf.Budget(1.0, 1e-6)"
        )


def gaussian_divergence(sensitivity: int, scale: int, order: float) -> Fraction:
    """Return an upper bound on the Rényi divergence of this order between neighbours."""
    return Fraction(order) * sensitivity**2 / (2 * scale**2)


def least_scale_for_divergence(sensitivity: int, order: float, limit: Fraction) -> int:
    """Return the smallest scale whose Rényi divergence of this order is at most `limit` (> 0)."""
    square = Fraction(order) * sensitivity**2 / (2 * limit)
    whole = -(-square.numerator // square.denominator)
    return math.isqrt(whole - 1) + 1


def least_scale_for_budget(sensitivity: int, budget: Budget, entries: int) -> int:
    """Return the smallest scale at which one release is (epsilon, delta)-private by itself.

    It is that of Gaussian noise, or by way of a Rényi divergence if epsilon is so large that the
    grid matters.

    Raises:
        InvalidInput: If the budget has no delta, or allows nothing.
    """
    order = best_release_order(budget)
    divergence = renyi_budget(decimal_at_most(budget.epsilon), decimal_at_most(budget.delta), order)
    if divergence <= 0:
        raise InvalidInput(f"the budget {budget} is too small for a release; raise it")
    high = least_scale_for_divergence(sensitivity, order, Fraction(divergence))
    epsilon, delta = decimal_at_most(budget.epsilon), Fraction(decimal_at_most(budget.delta))

    def too_small(scale: int) -> bool:
        return release_delta(sensitivity, scale, entries, epsilon) > delta

    return high if too_small(high) else largest_integer(too_small, 0, high) + 1


def release_delta(sensitivity: int, scale: int, entries: int, epsilon: Decimal) -> Fraction:
    """Return an upper bound on the delta, at this epsilon, of a release of `entries` numbers.

    It is that of Gaussian noise, plus what the difference between a discrete Gaussian and a rounded
    one can add. A scale of 0 gives 1.

    Guarantees:
        The bound is evaluated in interval arithmetic, and rounded up.
    """
    if scale == 0:
        return Fraction(1)
    grid = Fraction(entries, 8 * scale**2) * (1 + Fraction(exp_above(epsilon)))
    return min(Fraction(1), gaussian_delta(Fraction(sensitivity, scale), epsilon) + grid)


def gaussian_delta(ratio: Fraction, epsilon: Decimal) -> Fraction:
    """Return an upper bound on the delta of Gaussian noise whose deviation is sensitivity / ratio.

    It is Phi(ratio / 2 - epsilon / ratio) - e^epsilon Phi(-ratio / 2 - epsilon / ratio), with the
    distribution function Phi of the standard normal (Balle and Wang, 2018).
    """
    from flint import arb, ctx, fmpq

    if ratio > _LEAST_NOISE:
        return Fraction(1)
    before, ctx.prec = ctx.prec, _BITS
    try:
        r = arb(fmpq(ratio.numerator, ratio.denominator))
        exact = Fraction(epsilon)
        e = arb(fmpq(exact.numerator, exact.denominator))
        half, shift, root = r / 2, e / r, arb(2).sqrt()
        # Phi(x) = erfc(-x / sqrt(2)) / 2
        found = ((shift - half) / root).erfc() / 2 - e.exp() * ((shift + half) / root).erfc() / 2
        mantissa, exponent = (int(part) for part in found.upper().man_exp())
        if mantissa <= 0 or exponent + mantissa.bit_length() < _TINY:
            return Fraction(1, 2**-_TINY)
        return Fraction(mantissa) * Fraction(2) ** exponent
    finally:
        ctx.prec = before


EPSILON_UNIT = Fraction(1, 10**30)  # any epsilon >= 1e-13, in decimals, is a whole multiple
RENYI_UNIT = Fraction(COST_UNIT)
DELTA_UNIT = Fraction(1, 10**40)


@dataclass(frozen=True)
class Amount:
    """An amount of privacy loss (`loss`) and of additional delta (`leak`), in whole units."""

    loss: int = 0
    leak: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.loss + other.loss, self.leak + other.leak)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.loss - other.loss, self.leak - other.leak)

    def __mul__(self, times: int) -> Amount:
        return Amount(self.loss * times, self.leak * times)

    def within(self, other: Amount) -> bool:
        return self.loss <= other.loss and self.leak <= other.leak

    def times_in(self, other: Amount) -> int:
        """Return how many times this amount, which must not be zero, fits into `other`."""
        parts = ((self.loss, other.loss), (self.leak, other.leak))
        return min(max(0, room) // size for size, room in parts if size > 0)


ZERO = Amount()


@dataclass(frozen=True)
class Meter:
    """The unit in which a budget is counted.

    A budget with delta > 0 is counted in Rényi divergence of order `order`. If `order` is None, the
    budget is counted in epsilon.
    """

    order: float | None

    @property
    def unit(self) -> Fraction:
        return EPSILON_UNIT if self.order is None else RENYI_UNIT

    @property
    def name(self) -> str:
        return "epsilon" if self.order is None else f"Rényi divergence of order {self.order:g}"

    def limit(self, budget: Budget, reserve: float) -> Amount:
        """Return the total amount that the budget allows, rounded down."""
        if self.order is None:
            return Amount(round_down(Fraction(as_decimal(budget.epsilon)) / self.unit))
        spare = BELOW.subtract(decimal_at_most(budget.delta), as_decimal(reserve))
        loss = renyi_budget(decimal_at_most(budget.epsilon), spare, self.order)
        limit = Amount(
            round_down(Fraction(loss) / self.unit),
            round_down(Fraction(as_decimal(reserve)) / DELTA_UNIT),
        )
        if limit.loss <= 0:
            raise InvalidInput(
                f"{budget} leaves nothing to spend at Rényi order {self.order:g}; "
                "raise epsilon or delta, or lower the reserve"
            )
        return limit

    @lru_cache(maxsize=256)  # noqa: B019 (meters are immutable and few)
    def price(self, guarantee: Guarantee) -> Amount:
        """Return the price of an answer with this guarantee, rounded up.

        Raises:
            InvalidInput: If this meter cannot count the guarantee.
        """
        if isinstance(guarantee, RenyiGuarantee):
            return self._renyi_price(guarantee)
        leak = round_up(Fraction(as_decimal(guarantee.delta)) / DELTA_UNIT)
        if self.order is None:
            return Amount(round_up(Fraction(as_decimal(guarantee.epsilon)) / self.unit), leak)
        return Amount(
            round_up(Fraction(response_divergence(guarantee, self.order)) / self.unit), leak
        )

    def _renyi_price(self, guarantee: RenyiGuarantee) -> Amount:
        if self.order is None:
            raise InvalidInput(
                "a budget with delta = 0 is spent in epsilon, and this mechanism has only a Rényi "
                "guarantee; use hf.StableResponse(epsilon), or a budget with delta > 0"
            )
        if guarantee.order < self.order:
            raise InvalidInput(
                f"the budget is spent at Rényi order {self.order:g}, but the mechanism is for "
                f"order {guarantee.order:g}; create it with order={self.order!r}"
            )
        # The divergence does not decrease with the order, so a cost at a larger order suffices.
        return Amount(round_up(Fraction(guarantee.cost) / self.unit))

    def as_float(self, loss: int) -> float:
        """Return a loss in readable units: epsilon, or nats of Rényi divergence."""
        return float(loss * self.unit)
