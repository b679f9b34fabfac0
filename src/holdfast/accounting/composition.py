"""Composition: what many answers cost together. (docs/theory/composition.md)

Epsilon, delta, mechanism and number of queries are fixed before the first query; the queries may depend on earlier
answers. The optimal composition is that of Google's dp-accounting, on the worst pair of distributions.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import lru_cache

from ..errors import InvalidInput
from ..training.recipe import whole
from .budget import LARGEST_EPSILON, check_delta, check_epsilon

METHODS = ("basic", "advanced", "optimal")


def total_epsilon(epsilon: float, queries: int, delta: float = 0.0, method: str | None = None, query_delta: float = 0.0) -> float:
    """The epsilon of `queries` answers, each (epsilon, query_delta)-private, at a total of `delta`.

    The best of basic, advanced and optimal composition, or the one that `method` names; infinite where there is none.
    """
    if method not in (None, *METHODS):
        raise InvalidInput(f"method={method!r}: expected one of {', '.join(map(repr, METHODS))}, or None for the best")
    epsilon, delta, query_delta = check_epsilon(epsilon), check_delta(delta), check_delta(query_delta)
    queries = whole("queries", queries, 1)
    methods = METHODS if method is None else (method,)
    return min(_COMPOSE[name](epsilon, queries, delta, query_delta) for name in methods)


def per_query_epsilon(total: float, queries: int, delta: float = 0.0, method: str | None = None, query_delta: float = 0.0) -> float:
    """The largest epsilon per answer whose `total_epsilon` stays within `total`: the feasible end of a bisection."""
    total, queries = check_epsilon(total), whole("queries", queries, 1)

    def fits(epsilon: float) -> bool:
        return total_epsilon(epsilon, queries, delta, method, query_delta) <= total

    low, high = _bits(total / queries / 2), _bits(min(2 * total, LARGEST_EPSILON))  # a delta can carry one answer past the total
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
    if queries * query_delta > delta:
        return math.inf
    return math.nextafter(queries * epsilon, math.inf) if queries > 1 else epsilon


def _advanced(epsilon: float, queries: int, delta: float, query_delta: float) -> float:
    """As in the paper: sqrt(2 Q ln(1/delta')) eps + Q eps (e^eps - 1)."""
    spare = delta - queries * query_delta
    if spare <= 0.0 or epsilon > 100.0:
        return math.inf
    total = math.sqrt(2 * queries * math.log(1 / spare)) * epsilon + queries * epsilon * math.expm1(epsilon)
    return total * (1 + 1e-12)  # more than the rounding of floats can take off


@lru_cache(maxsize=4096)
def _optimal(epsilon: float, queries: int, delta: float, query_delta: float) -> float:
    """Of all (epsilon, query_delta)-private answers, a leaky randomised response loses most; its losses are multiples of epsilon."""
    kept_back = max(1e-12, 1e-16 * queries)  # of delta: the accountant's transforms err by up to a tenth of this
    if epsilon > 100.0 or delta <= kept_back:
        return math.inf
    from dp_accounting.pld import common, privacy_loss_distribution

    single = privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(epsilon, query_delta), value_discretization_interval=epsilon
    )
    return float(single.self_compose(queries).get_epsilon_for_delta(delta - kept_back))


_COMPOSE: dict[str, Callable[[float, int, float, float], float]] = {"basic": _basic, "advanced": _advanced, "optimal": _optimal}


def _bits(value: float) -> int:
    """A positive float's place in the order of all floats."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
