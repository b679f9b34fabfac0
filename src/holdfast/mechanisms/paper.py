"""The paper's responses for one model, kept as its method: label + noise > 1/2, as tables. Two classes only.

The paper's probabilities are the wish; where the rounding of the row before would make a row lose more than epsilon,
the row is the smallest that does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import count

from .arithmetic import SCALE, round_up
from .mechanism import PureMechanism, TableMechanism, binary_only
from .table import Approximate, Table, chain, rows_to


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
