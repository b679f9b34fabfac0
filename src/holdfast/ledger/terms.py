"""Terms: what was granted to a data set, in which units it is counted, and for how many answers."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import cached_property

from ..accounting import Budget, per_query_epsilon
from ..accounting.gaussian import best_release_order, require_delta
from ..accounting.meter import Amount, Meter
from ..accounting.renyi import best_order
from ..checks import as_float_or_nan, check_integer
from ..errors import InvalidInput
from ..mechanisms import AnswerMechanism, BudgetedResponse, StableResponse
from ..relations import Neighbours


@dataclass(frozen=True)
class Terms:
    """The terms of a budget that was granted to a data set.

    The default mechanism is made for the budget `planned` and the number of queries `queries`; a
    budget that is granted for a `release` has none.
    """

    budget: Budget
    neighbours: Neighbours
    order: float | None
    reserve: float
    planned: Budget
    queries: int
    release: bool = False

    @cached_property
    def meter(self) -> Meter:
        return Meter(self.order)

    @cached_property
    def limit(self) -> Amount:
        return self.meter.limit(self.budget, self.reserve)

    def answers_in(self, left: Amount) -> int:
        """Return how many answers of the planned kind an amount pays for; 0 for a release."""
        return 0 if self.release else max(0, self._answer_price.times_in(left))

    @cached_property
    def _answer_price(self) -> Amount:
        return self.meter.price(self.default_mechanism().guarantee(self.neighbours))

    def default_mechanism(self) -> AnswerMechanism:
        """Return the mechanism that answers the planned number of queries with the least noise.

        Raises:
            InvalidInput: If the budget was granted for a release, or allows nothing.
        """
        if self.release:
            raise InvalidInput(
                "this budget was granted for the release of a head, and its Rényi order makes "
                "answers one by one expensive; release a head with hf.release_head or `holdfast "
                "release`, or, from Python, pass a mechanism="
            )
        if self.order is None:
            return StableResponse(
                per_query_epsilon(self.planned.epsilon, self.queries, method="basic")
            )
        return BudgetedResponse(self.planned, self.queries, order=self.order)

    def as_json(self, reason: str = "") -> str:
        """Return the terms as a grant holds them, with the reason for it if there is one."""
        about = {**asdict(self), "neighbours": self.neighbours.value}
        return json.dumps(about | ({"reason": reason} if reason else {}), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Terms:
        about = json.loads(text)
        about.pop("reason", None)
        budgets = {name: Budget(**about[name]) for name in ("budget", "planned")}
        return cls(**{**about, **budgets, "neighbours": Neighbours.of(about["neighbours"])})


def make_terms(
    budget: Budget,
    neighbours: Neighbours | str,
    queries: int,
    order: float | None,
    reserve: float,
    release: bool,
) -> Terms:
    """Return the terms of a new grant; raise InvalidInput if it allows nothing or is not valid."""
    if not isinstance(budget, Budget):
        raise InvalidInput(
            f"budget is a {type(budget).__name__}: expected hf.Budget(epsilon, delta)"
        )
    relation, queries, part = (
        Neighbours.of(neighbours),
        check_integer("queries", queries, 1),
        as_float_or_nan(reserve),
    )
    if relation is Neighbours.REMOVE:
        raise InvalidInput(
            "neighbours='remove' (unlearning) is not enough for differential privacy; "
            "use 'add_remove' or 'replace'"
        )
    if not 0.0 <= part < max(budget.delta, 1e-300):
        raise InvalidInput(
            f"reserve={reserve!r}: "
            f"expected at least 0 and less than delta={budget.delta!r}, of which it is a part"
        )
    if release:
        require_delta(budget)
    if budget.delta == 0.0:
        if order is not None:
            raise InvalidInput(
                f"order={order!r}: a budget with delta = 0 is counted in epsilon and has no "
                "Rényi order; leave it out"
            )
        return Terms(budget, relation, None, part, budget, queries)
    planned = Budget(budget.epsilon, math.nextafter(budget.delta - part, 0.0)) if part else budget
    if order is None:
        chosen = best_release_order(planned) if release else best_order(planned, queries)
    else:
        chosen = as_float_or_nan(order)
    if not 1.0 < chosen <= 1e9:
        raise InvalidInput(f"order={order!r}: expected a Rényi order above 1, at most 1e9")
    return Terms(budget, relation, chosen, part, planned, queries, release)
