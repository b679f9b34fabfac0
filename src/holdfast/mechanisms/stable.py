"""Stable response: as little noise as differential privacy allows, at every distance. (docs/theory/stable-response.md)"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..accounting import ApproximateGuarantee
from ..accounting.budget import check_delta, check_epsilon
from ..relations import Neighbours
from .mechanism import TableMechanism, check_classes
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
