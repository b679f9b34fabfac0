"""Meters: the integer units in which a budget is counted, its limit, and the price of an answer.

A budget with delta = 0 is counted in epsilon. A budget with delta > 0 is counted in Rényi
divergence at one public order, so that answers of different costs, chosen adaptively, may be added
up (docs/theory/ledger.md); a part of its delta may be set aside for mechanisms that have a delta of
their own. Limits are rounded down, prices up.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ..errors import InvalidInput
from .arithmetic import BELOW, round_down, round_up
from .budget import Budget, Guarantee, RenyiGuarantee, as_decimal, decimal_at_most
from .renyi import COST_UNIT, renyi_budget, response_divergence

EPSILON_UNIT = Fraction(1, 10**30)  # any epsilon >= 1e-13, in decimals, is a whole multiple
RENYI_UNIT = Fraction(COST_UNIT)
DELTA_UNIT = Fraction(1, 10**40)


@dataclass(frozen=True)
class Amount:
    """An amount of privacy loss (`loss`) and of additional delta (`leak`), in whole units."""

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
        """Return how many times this amount, which must not be zero, fits into `other`."""
        parts = ((self.loss, other.loss), (self.leak, other.leak))
        return min(max(0, room) // size for size, room in parts if size > 0)


NOTHING = Amount()


@dataclass(frozen=True)
class Meter:
    """The unit in which a budget is counted.

    A budget with delta > 0 is counted in Rényi divergence of order `order`. If `order` is None, the
    budget is counted in epsilon.
    """

    order: float | None

    @property
    def unit(self) -> Fraction:
        return EPSILON_UNIT if self.order is None else RENYI_UNIT

    @property
    def name(self) -> str:
        return "epsilon" if self.order is None else f"Rényi divergence of order {self.order:g}"

    def limit(self, budget: Budget, reserve: float) -> Amount:
        """Return the total amount that the budget allows, rounded down."""
        if self.order is None:
            return Amount(round_down(Fraction(as_decimal(budget.epsilon)) / self.unit))
        spare = BELOW.subtract(decimal_at_most(budget.delta), as_decimal(reserve))
        loss = renyi_budget(decimal_at_most(budget.epsilon), spare, self.order)
        limit = Amount(
            round_down(Fraction(loss) / self.unit),
            round_down(Fraction(as_decimal(reserve)) / DELTA_UNIT),
        )
        if limit.loss <= 0:
            raise InvalidInput(
                f"{budget} leaves nothing to spend at Rényi order {self.order:g}; "
                "raise epsilon or delta, or lower the reserve"
            )
        return limit

    @lru_cache(maxsize=256)  # noqa: B019 (meters are immutable and few)
    def price(self, guarantee: Guarantee) -> Amount:
        """Return the price of an answer with this guarantee, rounded up.

        Raises:
            InvalidInput: If this meter cannot count the guarantee.
        """
        if isinstance(guarantee, RenyiGuarantee):
            return self._renyi_price(guarantee)
        leak = round_up(Fraction(as_decimal(guarantee.delta)) / DELTA_UNIT)
        if self.order is None:
            return Amount(round_up(Fraction(as_decimal(guarantee.epsilon)) / self.unit), leak)
        return Amount(
            round_up(Fraction(response_divergence(guarantee, self.order)) / self.unit), leak
        )

    def _renyi_price(self, guarantee: RenyiGuarantee) -> Amount:
        if self.order is None:
            raise InvalidInput(
                "a budget with delta = 0 is spent in epsilon, and this mechanism has only a Rényi "
                "guarantee; use hf.StableResponse(epsilon), or a budget with delta > 0"
            )
        if guarantee.order < self.order:
            raise InvalidInput(
                f"the budget is spent at Rényi order {self.order:g}, but the mechanism is for "
                f"order {guarantee.order:g}; create it with order={self.order!r}"
            )
        # The divergence does not decrease with the order, so a cost at a larger order suffices.
        return Amount(round_up(Fraction(guarantee.cost) / self.unit))

    def as_float(self, loss: int) -> float:
        """Return a loss in readable units: epsilon, or nats of Rényi divergence."""
        return float(loss * self.unit)
