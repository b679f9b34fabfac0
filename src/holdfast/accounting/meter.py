"""Meter: in which whole numbers a budget is counted, what it allows, and what an answer takes from it.

A budget with delta = 0 is counted in epsilon. One with delta > 0 is counted in Renyi divergence at one public order, so that
answers of different costs, chosen while answering, may be added up (docs/theory/ledger.md); a part of its delta may be
set aside for mechanisms that have a delta of their own. Limits are rounded down, prices up.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ..errors import InvalidInput
from .arithmetic import BELOW, round_down, round_up
from .budget import Budget, Guarantee, RenyiGuarantee, least, written
from .renyi import COST_UNIT, renyi_budget, response_divergence

EPSILON_UNIT = Fraction(1, 10**30)  # any epsilon from 1e-13 on, as people write it, is a whole number of these
RENYI_UNIT = Fraction(COST_UNIT)
LEAK_UNIT = Fraction(1, 10**40)


@dataclass(frozen=True)
class Amount:
    """So much privacy loss, and so much delta beside it, in whole units."""

    loss: int = 0
    leak: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.loss + other.loss, self.leak + other.leak)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.loss - other.loss, self.leak - other.leak)

    def __mul__(self, times: int) -> Amount:
        return Amount(self.loss * times, self.leak * times)

    def within(self, other: Amount) -> bool:
        return self.loss <= other.loss and self.leak <= other.leak

    def times_in(self, other: Amount) -> int:
        """How many times this, which is something, fits into the other."""
        parts = ((self.loss, other.loss), (self.leak, other.leak))
        return min(max(0, room) // size for size, room in parts if size > 0)


@dataclass(frozen=True)
class Meter:
    """`order`: of the Renyi divergence in which a budget with delta > 0 is counted; None: counted in epsilon."""

    order: float | None

    @property
    def unit(self) -> Fraction:
        return EPSILON_UNIT if self.order is None else RENYI_UNIT

    @property
    def name(self) -> str:
        return "epsilon" if self.order is None else f"Renyi divergence of order {self.order:g}"

    def limit(self, budget: Budget, reserve: float) -> Amount:
        """What the budget allows in all."""
        if self.order is None:
            return Amount(round_down(Fraction(written(budget.epsilon)) / self.unit))
        spare = BELOW.subtract(least(budget.delta), written(reserve))
        loss = renyi_budget(least(budget.epsilon), spare, self.order)
        limit = Amount(round_down(Fraction(loss) / self.unit), round_down(Fraction(written(reserve)) / LEAK_UNIT))
        if limit.loss <= 0:
            raise InvalidInput(
                f"{budget} leaves nothing to spend at Renyi order {self.order:g}; raise epsilon or delta, or set aside less of delta"
            )
        return limit

    @lru_cache(maxsize=256)  # noqa: B019 (meters are values, and few)
    def price(self, guarantee: Guarantee) -> Amount:
        """What an answer with this guarantee takes; raises InvalidInput where it cannot be told."""
        if isinstance(guarantee, RenyiGuarantee):
            return self._renyi(guarantee)
        leak = round_up(Fraction(written(guarantee.delta)) / LEAK_UNIT)
        if self.order is None:
            return Amount(round_up(Fraction(written(guarantee.epsilon)) / self.unit), leak)
        return Amount(round_up(Fraction(response_divergence(guarantee, self.order)) / self.unit), leak)

    def _renyi(self, guarantee: RenyiGuarantee) -> Amount:
        if self.order is None:
            raise InvalidInput(
                "a budget with delta = 0 is spent in epsilon, and this mechanism has a Renyi guarantee only; use "
                "hf.StableResponse(epsilon), or a budget with delta > 0"
            )
        if guarantee.order < self.order:
            raise InvalidInput(
                f"the budget is spent at Renyi order {self.order:g}, and the mechanism is for order {guarantee.order:g}; "
                f"make it with order={self.order!r}"
            )
        return Amount(round_up(Fraction(guarantee.cost) / self.unit))  # at a larger order the divergence is larger, if anything

    def shown(self, loss: int) -> float:
        """A loss as people read it: epsilon, or nats of Renyi divergence."""
        return float(loss * self.unit)
