"""Sparse vector: answer stable queries exactly, however many, and pay only for the unstable ones.

A secret head start is drawn once. A query is found stable with a probability that grows with its distance beyond
`threshold - head start`, and is then answered exactly; the session ends after a number of unstable verdicts.
Both noises are one-sided: of the two-sided ones of the textbook the proof needs only one side. (docs/theory/sparse-vector.md)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property

import torch
from jaxtyping import Int64
from torch import Tensor

from ..accounting import ApproximateGuarantee
from ..accounting.arithmetic import BELOW, SCALE, ratio_below, round_down, round_up
from ..accounting.budget import check_delta, check_epsilon, least
from ..certificates import Certificate
from ..checks import check_integer
from ..errors import BudgetExhausted, InvalidInput
from ..relations import Neighbours
from .mechanism import refuse_unsupported
from .table import SYSTEM, Entropy, chain, place

UNSTABLE = -1
"""The answer to a query that was found unstable: no label."""

SMALLEST_DELTA = 1e-30  # far above the unit of the tables, so that head starts grow as they should
_PARTS = 64
_TARGET = 0.01


@dataclass(frozen=True)
class SparseVectorTables:
    """The whole numbers that a session draws from: P(head start), and P(unstable) by how far a distance is beyond the threshold.

    Guarantees
    ----------
    heads[h] <= e^e1 heads[h + 1], and the last is at most delta * SCALE; doubts[m] <= e^(e2/c) doubts[m + 2], where
    doubts are SCALE up to m = 0; e1 + e2 <= epsilon. A distance of 0 is unstable for every head start.
    """

    epsilon: float
    delta: float
    unstable: int
    max_distance: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta))
        object.__setattr__(self, "unstable", check_integer("unstable", self.unstable, 1))
        object.__setattr__(self, "max_distance", check_integer("max_distance", self.max_distance, 1))
        if self.delta < SMALLEST_DELTA:
            raise InvalidInput(f"delta={self.delta!r}: SparseVector needs a delta above 0, at least {SMALLEST_DELTA:g}; try delta=1e-6")
        if self._threshold_about() > self.max_distance or self.threshold >= self.max_distance:
            raise InvalidInput(
                f"max_distance={self.max_distance}: the threshold is about {math.ceil(self._threshold_about())}, so hardly a query could be "
                "found stable; train with a larger max_distance, raise epsilon or delta, or allow fewer unstable verdicts"
            )

    def _threshold_about(self) -> float:
        return _threshold(float(self._shares[0]), self.delta)

    @cached_property
    def _shares(self) -> tuple[Decimal, Decimal]:
        """e1 for the head start and e2 / c for each unstable verdict, so divided that < 1% doubt is reached soonest."""
        reach = {part: self._reach(part / _PARTS) for part in range(1, _PARTS)}
        part = min(reach, key=lambda part: reach[part])
        whole_epsilon = least(self.epsilon)
        first = BELOW.divide(BELOW.multiply(whole_epsilon, Decimal(part)), Decimal(_PARTS))
        second = BELOW.divide(BELOW.multiply(whole_epsilon, Decimal(_PARTS - part)), Decimal(_PARTS * self.unstable))
        return first, second

    def _reach(self, part: float) -> float:
        """The distance from which doubts are below 1%, roughly."""
        first, second = part * self.epsilon, (1 - part) * self.epsilon / self.unstable
        return _threshold(first, self.delta) + 2 * math.log(1 / _TARGET) / second

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """P(head start = h): built from the last, which may be as likely as delta, down to 0, which takes what is left."""
        ratio = ratio_below(self._shares[0])
        rows = [round_down(Fraction(least(self.delta)) * SCALE)]
        left = SCALE - rows[0]
        while left > 0:
            rows.append(min(left, round_down(rows[-1] * ratio)))
            left -= rows[-1]
        return tuple(reversed(rows))

    @property
    def threshold(self) -> int:
        """A distance at or below this is stable only by the head start."""
        return len(self.heads) - 1

    @cached_property
    def _stairs(self) -> tuple[int, ...]:
        ratio = ratio_below(self._shares[1])
        return chain(SCALE, lambda row: round_up(row / ratio))

    def doubt(self, distance: int, head: int) -> int:
        """P(unstable) of SCALE. A step down every second unit of distance: the head start and the distance may each move by one."""
        beyond = max(0, distance - self.threshold + head)
        return self._stairs[min((beyond + 1) // 2, len(self._stairs) - 1)]


def _threshold(epsilon: float, delta: float) -> float:
    """How many head starts there are, roughly: the geometric series from delta upwards that adds up to 1."""
    return (math.log1p(math.expm1(epsilon) / delta) if epsilon < 100 else epsilon - math.log(delta)) / epsilon


class SparseVector:
    """A session that answers any number of queries until `unstable` of them have been found unstable.

    `max_distance`: the largest distance that the certificates can have (as given to `train`). It must lie beyond the
    threshold, or no query could ever be found stable.

    Guarantees
    ----------
    The whole session is (epsilon, delta)-differentially private given P1 and P2, for adaptively chosen queries.
    """

    def __init__(self, epsilon: float, delta: float, unstable: int, max_distance: int, entropy: Entropy = SYSTEM) -> None:
        self.tables = SparseVectorTables(epsilon, delta, unstable, max_distance)
        self.left = self.tables.unstable
        self._entropy = entropy
        self._head = place(self.tables.heads, entropy.draw())

    @property
    def identity(self) -> str:
        """The mechanism's name, version and settings; see `Mechanism.identity`."""
        tables = self.tables
        settings = f"unstable={tables.unstable} max_distance={tables.max_distance}"
        return f"sparse-vector/1 epsilon={tables.epsilon!r} delta={tables.delta!r} {settings}"

    def guarantee(self, neighbours: Neighbours | str = Neighbours.ADD_REMOVE) -> ApproximateGuarantee:
        """What the whole session costs one record."""
        return ApproximateGuarantee(self.tables.epsilon, self.tables.delta, Neighbours.of(neighbours))

    @property
    def ended(self) -> bool:
        return self.left == 0

    def ask(self, certificate: Certificate) -> Int64[Tensor, " answered"]:
        """The queries' labels, in order, UNSTABLE where they are not stable; fewer than asked where the session ends among them."""
        refuse_unsupported(type(self).__name__, certificate, needs_distance=True)
        if self.ended:
            raise BudgetExhausted(f"the session ended after {self.tables.unstable} unstable verdicts; nothing was answered")
        answers = []
        for label, distance in zip(certificate.labels.tolist(), certificate.distances.tolist(), strict=True):
            if self.ended:
                break
            unstable = self._entropy.draw() < self.tables.doubt(distance, self._head)
            self.left -= unstable
            answers.append(UNSTABLE if unstable else label)
        return torch.tensor(answers, dtype=torch.int64)
