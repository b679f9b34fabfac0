"""Responses with a cost in epsilon per answer: the stable response, and the two of the paper.

StableResponse adds as little noise as differential privacy allows at every distance
(docs/theory/stable-response.md). CauchyResponse and LaplaceResponse are the methods of the paper (answer
whether label + noise > 1/2), for two classes, written as tables: if rounding would let a row lose more
than epsilon against the row before it, the smallest row that does not is used instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import count

from ..accounting import ApproximateGuarantee
from ..accounting.arithmetic import SCALE, round_up
from ..accounting.budget import check_delta, check_epsilon
from ..relations import Neighbours
from .mechanism import PureMechanism, TableMechanism, binary_only, check_classes
from .table import Approximate, Table, chain, rows_to


@dataclass(frozen=True)
class StableResponse(TableMechanism):
    """(epsilon, delta) per answer, for any number of classes.

    Guarantees
    ----------
    Each answer is (epsilon, delta)-differentially private given P1 and P2, with the whole numbers that are sampled; no
    table answers the true label more often at any distance (but for the last of 128 bits).
    With delta > 0 the answer is exact from a finite distance on; Q answers cost Q * delta.
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta))

    @property
    def identity(self) -> str:
        return f"stable-response/1 epsilon={self.epsilon!r} delta={self.delta!r}"

    def guarantee(self, neighbours: Neighbours | str = Neighbours.ADD_REMOVE) -> ApproximateGuarantee:
        return ApproximateGuarantee(self.epsilon, self.delta, Neighbours.of(neighbours))

    def table(self, classes: int = 2, reach: int | None = None) -> Table:
        check_classes(classes)
        return _table(self.epsilon, self.delta, classes, rows_to(reach))


@lru_cache(maxsize=8)
def _table(epsilon: float, delta: float, classes: int, longest: int) -> Table:
    limit = Approximate(epsilon, delta)
    return Table(chain(limit.first(classes), limit.following, longest), classes)


@dataclass(frozen=True)
class CauchyResponse(PureMechanism, TableMechanism):
    """Smooth sensitivity: Cauchy noise of scale 6 exp(-epsilon k / 6) / epsilon. Its true loss is at most epsilon / 6 per unit of distance."""

    name_and_version = "cauchy-response/1"

    def table(self, classes: int = 2, reach: int | None = None) -> Table:
        binary_only("CauchyResponse", classes)
        return _cauchy(self.epsilon, rows_to(reach))


@dataclass(frozen=True)
class LaplaceResponse(PureMechanism, TableMechanism):
    """Global sensitivity: Laplace noise of scale 1 / epsilon, whatever the distance."""

    name_and_version = "laplace-response/1"
    needs_distance = False

    def table(self, classes: int = 2, reach: int | None = None) -> Table:
        binary_only("LaplaceResponse", classes)
        return Table((max(_whole(math.exp(-self.epsilon / 2) / 2), Approximate(self.epsilon).first(2)),), 2)


@lru_cache(maxsize=8)
def _cauchy(epsilon: float, longest: int) -> Table:
    limit = Approximate(epsilon)
    wishes = (_whole(math.atan(12 / epsilon * math.exp(-epsilon * k / 6)) / math.pi) for k in count())
    first = max(next(wishes), limit.first(2))
    return Table(chain(first, lambda row: max(next(wishes), limit.following(row)), longest), 2)


def _whole(probability: float) -> int:
    return round_up(Fraction(probability) * SCALE)
