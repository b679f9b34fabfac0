"""BudgetStatus: the state of a budget, in readable units."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..accounting import Budget
from ..accounting.meter import DELTA_UNIT, Meter
from ..relations import Neighbours
from .accounts import Account


@dataclass(frozen=True)
class BudgetStatus:
    """The state of a budget, in readable units. All fields are public.

    Losses are in epsilon or, if the budget has a delta, in Rényi divergence at `order`.
    `answers_left` is how many answers of the planned kind are left (none, if the budget is for a
    release), and `answers_left_by_share` how many for each analyst who has a share. `closed` is the
    reason if the budget was closed, else empty.
    """

    name: str
    budget: Budget
    neighbours: Neighbours
    order: float | None
    reserve: float
    queries: int
    limit: float
    spent: float
    remaining: float
    reserve_spent: float
    answers: int
    shares: dict[str, float]
    by_analyst: dict[str, float]
    release: bool
    releases: int
    answers_left: int
    answers_left_by_share: dict[str, int]
    closed: str = ""

    @property
    def unit(self) -> str:
        """What the budget is counted in: epsilon, or Rényi divergence of an order."""
        return Meter(self.order).name

    @property
    def share_spent(self) -> float:
        """The part of the budget that is spent, from 0 to 1."""
        return self.spent / self.limit

    @classmethod
    def of(cls, account: Account) -> BudgetStatus:
        terms, shown = account.terms, account.terms.meter.as_float
        by_analyst = {
            name: shown(amount.loss) for name, amount in account.by_analyst.items() if name
        }
        return cls(
            account.name,
            terms.budget,
            terms.neighbours,
            terms.order,
            terms.reserve,
            terms.queries,
            shown(terms.limit.loss),
            shown(account.spent.loss),
            shown(account.remaining().loss),
            float(account.spent.leak * DELTA_UNIT),
            account.answers,
            dict(account.shares),
            by_analyst,
            terms.release,
            len(account.releases),
            terms.answers_in(account.remaining()),
            {name: terms.answers_in(account.remaining(name)) for name in account.shares},
            account.closed,
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "neighbours": self.neighbours.value,
            "unit": self.unit,
            "share_spent": self.share_spent,
        }
