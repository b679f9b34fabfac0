"""Composition: what many answers cost together. (docs/theory/composition.md)

Epsilon, delta, mechanism and number of queries are fixed before the first query; the queries may depend on earlier
answers. The optimal composition is that of Google's dp-accounting, on the worst pair of distributions.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import numpy as np

from ..checks import check_integer
from ..errors import InvalidInput
from .budget import LARGEST_EPSILON, check_delta, check_epsilon, written

METHODS = ("basic", "advanced", "optimal")


def total_epsilon(epsilon: float, queries: int, delta: float = 0.0, method: str | None = None, query_delta: float = 0.0) -> float:
    """The epsilon of `queries` answers, each (epsilon, query_delta)-private, at a total of `delta`.

    The best of basic, advanced and optimal composition, or the one that `method` names; infinite where there is none.
    """
    if method not in (None, *METHODS):
        raise InvalidInput(f"method={method!r}: expected one of {', '.join(map(repr, METHODS))}, or None for the best")
    epsilon, delta, query_delta = check_epsilon(epsilon), check_delta(delta), check_delta(query_delta)
    queries = check_integer("queries", queries, 1)
    methods = METHODS if method is None else (method,)
    return min(_COMPOSE[name](epsilon, queries, delta, query_delta) for name in methods)


def per_query_epsilon(total: float, queries: int, delta: float = 0.0, method: str | None = None, query_delta: float = 0.0) -> float:
    """The largest epsilon per answer whose `total_epsilon` stays within `total`: the feasible end of a bisection."""
    total, queries = check_epsilon(total), check_integer("queries", queries, 1)
    if queries * Fraction(written(check_delta(query_delta))) > Fraction(written(check_delta(delta))):
        raise InvalidInput(
            f"query_delta={query_delta:g} over {queries} queries is more than delta={delta:g} in all; ask fewer, or lower it"
        )

    def fits(epsilon: float) -> bool:
        return total_epsilon(epsilon, queries, delta, method, query_delta) <= total

    low, high = _bits(total / queries / 2), _bits(LARGEST_EPSILON)
    while low > 0 and not fits(_float(low)):
        low -= 1 << 52  # half of it
    if low <= 0:
        raise InvalidInput(f"no epsilon per query fits ({total:g}, {delta:g}) over {queries} queries at query_delta={query_delta:g}")
    if fits(_float(high)):
        return _float(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(_float(middle)) else (low, middle)
    return _float(low)


def _basic(epsilon: float, queries: int, delta: float, query_delta: float) -> float:
    """The numbers are those that people wrote: ten times 0.1 is 1.0."""
    if queries * Fraction(written(query_delta)) > Fraction(written(delta)):
        return math.inf
    exact = queries * Fraction(written(epsilon))
    total = queries * epsilon
    while Fraction(written(total)) < exact:
        total = math.nextafter(total, math.inf)
    while Fraction(written(math.nextafter(total, 0.0))) >= exact:
        total = math.nextafter(total, 0.0)
    return total


def _advanced(epsilon: float, queries: int, delta: float, query_delta: float) -> float:
    """As in the paper: sqrt(2 Q ln(1/delta')) eps + Q eps (e^eps - 1)."""
    spare = float(Fraction(delta) - queries * Fraction(query_delta)) * (1 - 1e-12)
    if spare <= 0.0 or epsilon > 100.0:
        return math.inf
    total = math.sqrt(2 * queries * math.log(1 / spare)) * epsilon + queries * epsilon * math.expm1(epsilon)
    return total * (1 + 1e-12)  # more than the rounding of floats can take off


@lru_cache(maxsize=4096)
def _optimal(epsilon: float, queries: int, delta: float, query_delta: float) -> float:
    """Of all (epsilon, query_delta)-private answers, a leaky randomised response loses most; its losses are multiples of epsilon.

    The accountant proposes: its transforms err by about 1e-17 per query, to either side. The binomial tail disposes:
    what is returned satisfies it.
    """
    spare = delta - max(1e-12, 1e-16 * queries)
    if epsilon > 100.0 or queries > _MOST_QUERIES or spare <= 0.0:
        return math.inf
    from dp_accounting.pld import common, privacy_loss_distribution

    with np.errstate(all="ignore"):  # an overflow on the way only makes a poor proposal
        single = privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(epsilon, query_delta), value_discretization_interval=epsilon
        )
        total = float(single.self_compose(queries).get_epsilon_for_delta(spare))
    step = max(total, epsilon) * 1e-9
    while total < queries * epsilon:
        if _tail(epsilon, queries, total, query_delta) <= delta:
            return total
        total, step = total + step, 2 * step
    return math.inf  # no better than basic composition


def _tail(epsilon: float, queries: int, total: float, query_delta: float) -> float:
    """At least the delta of leaky randomised responses at a total epsilon: P(X > k) - e^total P(Y > k) for binomials X and Y.

    The binomial tails are good to 1e-10 relatively, each taken on its small side; ten times that is added. A tail near the
    smallest floats is taken for 0, which errs to the safe side.
    """
    from scipy.stats import binom

    flip = 1.0 / (1.0 + math.exp(epsilon))
    blur = 1e-12 + 1e-15 * queries  # of the number of keeping answers at which the loss is the total
    most = math.floor((queries + total / epsilon) / 2 - blur)
    here, there = float(binom.cdf(queries - most - 1, queries, flip)), float(binom.sf(most, queries, flip))
    other = math.exp(min(total + math.log(there), 0.0)) if there > 1e-290 else 0.0
    excess = max(0.0, here * (1 + 1e-9 + 4 * blur * epsilon) - other * (1 - 1e-9))
    return -math.expm1(queries * math.log1p(-query_delta) + math.log1p(-min(excess, 1 - 1e-16))) * (1 + 1e-9)


_MOST_QUERIES = 10**6  # beyond, the accountant takes minutes
_COMPOSE: dict[str, Callable[[float, int, float, float], float]] = {"basic": _basic, "advanced": _advanced, "optimal": _optimal}


def _bits(value: float) -> int:
    """A positive float's place in the order of all floats."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
