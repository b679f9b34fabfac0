"""Arithmetic that the privacy proofs rely on: integers, and decimals with directed rounding.

Python's decimal module rounds exp and ln correctly, so moving one step up or down gives a true
bound; sums and products are rounded in the direction of their context. Probabilities are integers
in units of 1 / SCALE.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache

SCALE = 1 << 128
"""A probability p is stored as the integer p * SCALE, to be compared with 128 random bits."""

_DIGITS = 64
BELOW = Context(prec=_DIGITS, rounding=ROUND_FLOOR, Emin=MIN_EMIN, Emax=MAX_EMAX)
ABOVE = Context(prec=_DIGITS, rounding=ROUND_CEILING, Emin=MIN_EMIN, Emax=MAX_EMAX)


def exp_below(x: Decimal) -> Decimal:
    """Return a lower bound on e^x."""
    return x.exp(BELOW).next_minus(BELOW)


def exp_above(x: Decimal) -> Decimal:
    """Return an upper bound on e^x."""
    return x.exp(ABOVE).next_plus(ABOVE)


def ln_below(x: Decimal) -> Decimal:
    """Return a lower bound on ln x."""
    return _ln(x).next_minus(BELOW)


def ln_above(x: Decimal) -> Decimal:
    """Return an upper bound on ln x."""
    return _ln(x).next_plus(ABOVE)


@lru_cache(maxsize=64)
def _ln(x: Decimal) -> Decimal:
    return x.ln(BELOW)  # rounded to nearest, whatever the rounding mode of the context


def ratio_below(epsilon: float | Decimal) -> Fraction:
    """Return a fraction that is at most e^epsilon, with a relative error below 1e-60.

    Exact comparisons of integers use it in place of e^epsilon.
    """
    return Fraction(exp_below(Decimal(epsilon)))


def round_up(value: Fraction) -> int:
    """Return the smallest integer that is at least `value`."""
    return -(-value.numerator // value.denominator)


def round_down(value: Fraction) -> int:
    """Return the largest integer that is at most `value`."""
    return value.numerator // value.denominator


def largest_integer(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return an integer n of low..high - 1 with holds(n) and not holds(n + 1), by bisection.

    Guarantees:
        If holds(low) and not holds(high), then the result and its successor were each evaluated, or
        are `low` and `high`. If `holds` is decreasing, the result is the largest that holds.
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
