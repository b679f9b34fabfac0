"""Composition: the total privacy cost of many answers (docs/theory/composition.md).

Epsilon, delta, mechanism and number of queries are fixed before the first query; the queries may
depend on earlier answers. Optimal composition is that of the worst-case pair of distributions,
whose tails are binomial.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from ..checks import check_integer
from ..errors import InvalidInput
from .arithmetic import largest_integer
from .budget import LARGEST_EPSILON, as_decimal, check_delta, check_epsilon

METHODS = ("basic", "advanced", "optimal")


def total_epsilon(
    epsilon: float,
    queries: int,
    *,
    delta: float = 0.0,
    method: str | None = None,
    query_delta: float = 0.0,
) -> float:
    """Return the total epsilon of adaptively chosen answers.

    Args:
        epsilon: The epsilon of each answer.
        queries: The number of answers.
        delta: The total delta.
        method: "basic", "advanced" or "optimal" composition; the best of them if None.
        query_delta: The delta of each answer.

    Returns:
        The total epsilon; infinite if the method gives no bound at this delta.

    Raises:
        InvalidInput: If a number is out of range, or the method is unknown.

    Guarantees:
        The result is never below the optimal composition of the answers.

    Example:
        >>> import holdfast as hf
        >>> hf.total_epsilon(0.1, queries=10)
        1.0
    """
    if method not in (None, *METHODS):
        raise InvalidInput(
            f"method={method!r}: "
            f"expected one of {', '.join(map(repr, METHODS))}, or None for the best"
        )
    epsilon, delta, query_delta = (
        check_epsilon(epsilon),
        check_delta(delta),
        check_delta(query_delta),
    )
    queries = check_integer("queries", queries, 1)
    methods = METHODS if method is None else (method,)
    return min(_COMPOSE[name](epsilon, queries, delta, query_delta) for name in methods)


def per_query_epsilon(
    total: float,
    queries: int,
    *,
    delta: float = 0.0,
    method: str | None = None,
    query_delta: float = 0.0,
) -> float:
    """Return the largest epsilon per answer whose `total_epsilon` is within a total.

    Args:
        total: The total epsilon.
        queries: The number of answers.
        delta: The total delta.
        method: As for `total_epsilon`.
        query_delta: The delta of each answer.

    Returns:
        The largest float that fits.

    Raises:
        InvalidInput: If a number is out of range, or nothing fits.

    Example:
        >>> import holdfast as hf
        >>> hf.per_query_epsilon(10.0, queries=100)
        0.1
    """
    total, queries = check_epsilon(total), check_integer("queries", queries, 1)
    if queries * Fraction(as_decimal(check_delta(query_delta))) > Fraction(
        as_decimal(check_delta(delta))
    ):
        raise InvalidInput(
            f"query_delta={query_delta:g} over {queries} queries "
            f"adds up to more than delta={delta:g}; "
            "lower query_delta or ask fewer queries"
        )

    def fits(epsilon: float) -> bool:
        return (
            total_epsilon(epsilon, queries, delta=delta, method=method, query_delta=query_delta)
            <= total
        )

    low, high = _ordinal_of_float(total / queries / 2), _ordinal_of_float(LARGEST_EPSILON)
    while low > 0 and not fits(_float_of_ordinal(low)):
        low -= 1 << 52  # halves the float: its exponent falls by 1
    if low <= 0:
        raise InvalidInput(
            f"no epsilon per query fits a total of ({total:g}, {delta:g}) over {queries} queries "
            f"at query_delta={query_delta:g}; raise the total or delta, or ask fewer queries"
        )
    if fits(_float_of_ordinal(high)):
        return _float_of_ordinal(high)
    return _float_of_ordinal(largest_integer(lambda bits: fits(_float_of_ordinal(bits)), low, high))


def _basic(epsilon: float, queries: int, delta: float, query_delta: float) -> float:
    """Return queries * epsilon, rounded up, or infinity if the deltas exceed `delta`.

    All numbers are read in their shortest decimal form, so that ten times 0.1 is 1.0.
    """
    if queries * Fraction(as_decimal(query_delta)) > Fraction(as_decimal(delta)):
        return math.inf
    exact = queries * Fraction(as_decimal(epsilon))
    total = queries * epsilon
    while Fraction(as_decimal(total)) < exact:
        total = math.nextafter(total, math.inf)
    while Fraction(as_decimal(math.nextafter(total, 0.0))) >= exact:
        total = math.nextafter(total, 0.0)
    return total


def _advanced(epsilon: float, queries: int, delta: float, query_delta: float) -> float:
    """Return the bound of advanced composition, as in the paper.

    The bound is sqrt(2 Q ln(1/delta')) eps + Q eps (e^eps - 1), where delta' = delta - Q
    query_delta.
    """
    spare = float(Fraction(delta) - queries * Fraction(query_delta)) * (1 - 1e-12)
    if spare <= 0.0 or epsilon > 100.0:
        return math.inf
    total = math.sqrt(2 * queries * math.log(1 / spare)) * epsilon + queries * epsilon * math.expm1(
        epsilon
    )
    return total * (1 + 1e-12)  # covers the rounding errors of the line above


@lru_cache(maxsize=4096)
def _optimal(epsilon: float, queries: int, delta: float, query_delta: float) -> float:
    """Return the bound of optimal composition, or infinity if it is unavailable.

    Among all (epsilon, query_delta)-private answers, a randomised response that leaks with
    probability query_delta loses the most privacy (Kairouz, Oh, Viswanath 2015), and its delta at a
    total epsilon is a binomial tail. The result is the smallest total found by bisection; what is
    returned was itself found to satisfy the tail bound.
    """
    trusted = max(1e-12, 1e-16 * queries)  # smaller deltas are beyond the accuracy of the tail
    if epsilon > 100.0 or queries > _MOST_QUERIES or delta <= trusted:
        return math.inf

    def fits(total: float) -> bool:
        return _delta_upper_bound(epsilon, queries, total, query_delta) <= delta

    most = queries * epsilon
    if not fits(most):  # the margin of the tail is too wide here: add the epsilons, rounded up
        if queries * Fraction(query_delta) > Fraction(delta):
            return math.inf
        exact = Fraction(most) >= queries * Fraction(epsilon)
        return most if exact else math.nextafter(most, math.inf)
    if fits(0.0):
        return 0.0
    too_small = largest_integer(
        lambda bits: not fits(_float_of_ordinal(bits)), 0, _ordinal_of_float(most)
    )
    return _float_of_ordinal(too_small + 1)


def _delta_upper_bound(epsilon: float, queries: int, total: float, query_delta: float) -> float:
    """Return an upper bound on the delta of leaky randomised responses at a total epsilon.

    Without leaks, that delta is P(X > k) - e^total P(Y > k) for binomial variables X and Y. The
    binomial tails are accurate to a relative error of 1e-10, each evaluated on its small side; ten
    times that is added. The tail of Y is replaced by 0 if it is near the smallest floats, which
    errs on the safe side.
    """
    from scipy.special import betainc

    flip = 1.0 / (1.0 + math.exp(epsilon))
    # Tolerance on the number of truthful answers at which the privacy loss equals `total`.
    blur = 1e-12 + 1e-15 * queries
    most = math.floor((queries + total / epsilon) / 2 - blur)
    below, above = most + 1, queries - most  # P(X > most) and P(Y > most) as beta integrals
    here = float(betainc(below, above, 1.0 / (1.0 + math.exp(-epsilon)))) if above > 0 else 0.0
    there = float(betainc(below, above, flip)) if above > 0 else 0.0
    other = math.exp(min(total + math.log(there), 0.0)) if there > 1e-290 else 0.0
    excess = max(0.0, here * (1 + 1e-9 + 4 * blur * epsilon) - other * (1 - 1e-9))
    return -math.expm1(queries * math.log1p(-query_delta) + math.log1p(-min(excess, 1 - 1e-16))) * (
        1 + 1e-9
    )


_MOST_QUERIES = 10**6  # the accuracy of the tail is tested up to this number
_COMPOSE: dict[str, Callable[[float, int, float, float], float]] = {
    "basic": _basic,
    "advanced": _advanced,
    "optimal": _optimal,
}


def _ordinal_of_float(value: float) -> int:
    """Return the bits of a positive float as an integer, which preserves the order of floats."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _float_of_ordinal(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
