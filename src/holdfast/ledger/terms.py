"""Terms: what was granted for a data set, in what it is counted, and which mechanism it was planned with."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import cached_property

from ..accounting import Budget, per_query_epsilon
from ..checks import real, whole
from ..errors import InvalidInput
from ..mechanisms import BudgetedResponse, Mechanism, StableResponse
from ..mechanisms.order import best_order
from ..relations import Neighbours
from .meter import Amount, Meter


@dataclass(frozen=True)
class Terms:
    """What was granted for a data set. `planned`: the budget and number of queries that the usual mechanism is made for."""

    budget: Budget
    neighbours: Neighbours
    order: float | None
    reserve: float
    planned: Budget
    queries: int

    @cached_property
    def meter(self) -> Meter:
        return Meter(self.order)

    @cached_property
    def limit(self) -> Amount:
        return self.meter.limit(self.budget, self.reserve)

    def usual_mechanism(self) -> Mechanism:
        """What answers the planned number of queries with the least noise."""
        if self.order is None:
            return StableResponse(per_query_epsilon(self.planned.epsilon, self.queries, method="basic"))
        return BudgetedResponse(self.planned, self.queries, self.order)

    def as_json(self) -> str:
        return json.dumps({**asdict(self), "neighbours": self.neighbours.value}, sort_keys=True)

    @classmethod
    def of_json(cls, text: str) -> Terms:
        about = json.loads(text)
        budgets = {name: Budget(**about[name]) for name in ("budget", "planned")}
        return cls(**{**about, **budgets, "neighbours": Neighbours.of(about["neighbours"])})


def terms_of(budget: Budget, neighbours: Neighbours | str, queries: int, order: float | None, reserve: float) -> Terms:
    """The terms of a new grant; refuses what allows nothing, or cannot be counted."""
    if not isinstance(budget, Budget):
        raise InvalidInput(f"budget is a {type(budget).__name__}: expected hf.Budget(epsilon, delta)")
    relation, queries, part = Neighbours.of(neighbours), whole("queries", queries, 1), real(reserve)
    if relation is Neighbours.REMOVE:
        raise InvalidInput("neighbours='remove' (unlearning) is not enough for differential privacy; use 'add_remove' or 'replace'")
    if not 0.0 <= part < max(budget.delta, 1e-300):
        raise InvalidInput(f"reserve={reserve!r}: expected less than delta={budget.delta!r}, of which it is a part")
    if budget.delta == 0.0:
        if order is not None:
            raise InvalidInput("order: a budget with delta = 0 is counted in epsilon and has no Renyi order")
        return Terms(budget, relation, None, part, budget, queries)
    planned = Budget(budget.epsilon, math.nextafter(budget.delta - part, 0.0)) if part else budget
    chosen = best_order(planned, queries) if order is None else real(order)
    if not 1.0 < chosen <= 1e9:
        raise InvalidInput(f"order={order!r}: expected a Renyi order above 1, at most 1e9")
    return Terms(budget, relation, chosen, part, planned, queries)
