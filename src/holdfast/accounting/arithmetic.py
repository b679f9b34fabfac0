"""Arithmetic that the proofs of privacy rely on: whole numbers, and decimals rounded to a known side.

Python's decimal module rounds exp and ln correctly, so one step to the side gives a true bound; sums and products are
rounded to the side asked for. Probabilities are whole numbers of SCALE.
"""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache

SCALE = 1 << 128
"""A probability p is stored as the whole number p * SCALE, which is what is compared with 128 random bits."""

_DIGITS = 64
BELOW = Context(prec=_DIGITS, rounding=ROUND_FLOOR, Emin=MIN_EMIN, Emax=MAX_EMAX)
ABOVE = Context(prec=_DIGITS, rounding=ROUND_CEILING, Emin=MIN_EMIN, Emax=MAX_EMAX)


def exp_below(x: Decimal) -> Decimal:
    """At most e^x."""
    return x.exp(BELOW).next_minus(BELOW)


def exp_above(x: Decimal) -> Decimal:
    """At least e^x."""
    return x.exp(ABOVE).next_plus(ABOVE)


def ln_below(x: Decimal) -> Decimal:
    """At most ln x."""
    return _ln(x).next_minus(BELOW)


def ln_above(x: Decimal) -> Decimal:
    """At least ln x."""
    return _ln(x).next_plus(ABOVE)


@lru_cache(maxsize=64)
def _ln(x: Decimal) -> Decimal:
    return x.ln(BELOW)  # to the nearest, whatever the context's rounding


def ratio_below(epsilon: float | Decimal) -> Fraction:
    """A fraction at most e^epsilon, within 1e-60 of it: what an exact comparison of whole numbers uses for e^epsilon."""
    return Fraction(exp_below(Decimal(epsilon)))


def round_up(value: Fraction) -> int:
    """The least whole number at or above."""
    return -(-value.numerator // value.denominator)


def round_down(value: Fraction) -> int:
    """The greatest whole number at or below."""
    return value.numerator // value.denominator
