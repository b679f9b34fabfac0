"""Gaussian noise: its Rényi divergence, its exact (epsilon, delta), and the least noise for both.

A vector of integers is released with a discrete Gaussian added to each entry. `sensitivity` is the
Euclidean distance between the vectors of neighbouring data sets and `scale` the parameter of the
noise, both whole numbers, in units of the same grid. All bounds are rounded to the safe side
(docs/theory/release.md).
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

import numpy as np

from ..errors import InvalidInput
from .arithmetic import exp_above, largest_integer
from .budget import Budget, decimal_at_most
from .renyi import ORDERS, renyi_budget

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
