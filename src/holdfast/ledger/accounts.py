"""Accounts: what was granted for each data set, and what the entries have spent of it.

Nothing here is stored: an account is the sum of the entries, read in order.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from ..accounting import Budget, per_query_epsilon
from ..accounting.budget import as_decimal
from ..accounting.gaussian import best_release_order, require_delta
from ..accounting.meter import DELTA_UNIT, Amount, Meter
from ..accounting.renyi import best_order
from ..checks import as_float_or_nan, check_integer
from ..errors import InvalidInput, TamperedLedger
from ..mechanisms import AnswerMechanism, BudgetedResponse, StableResponse
from ..relations import Neighbours
from .entries import ANSWER, GRANT, RELEASE, SESSION, SHARE, Entry


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

    def as_json(self) -> str:
        return json.dumps({**asdict(self), "neighbours": self.neighbours.value}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Terms:
        about = json.loads(text)
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


@dataclass
class Session:
    """A sparse-vector session.

    Its secret is derived from the nonce and the owner's key. `left` is the number of unstable
    verdicts until it ends.
    """

    nonce: str
    left: int


@dataclass
class Account:
    """Everything that was granted, spent and answered for one data set."""

    name: str
    terms: Terms
    spent: Amount = field(default_factory=Amount)
    shares: dict[str, float] = field(default_factory=dict)
    by_analyst: dict[str, Amount] = field(default_factory=dict)
    answers: dict[tuple[str, str], int] = field(default_factory=dict)  # per analyst and question
    sessions: dict[str, Session] = field(default_factory=dict)  # the latest per session hash
    models: set[str] = field(default_factory=set)
    releases: dict[str, dict[str, Any]] = field(default_factory=dict)  # by question
    # What a release that took the budget whole costs beyond it, once the budget is raised.
    beyond: Amount = field(default_factory=Amount)

    @property
    def untouched(self) -> bool:
        """Whether nothing was answered or released yet."""
        return self.spent == Amount() and not (self.answers or self.sessions or self.releases)

    def remaining(self, analyst: str | None = None) -> Amount:
        """Return what is left of the budget, or of the analyst's share if that is less."""
        left = self.terms.limit - self.spent
        if analyst not in self.shares:
            return left
        part, limit, own = (
            Fraction(as_decimal(self.shares[analyst])),
            self.terms.limit,
            self.by_analyst.get(analyst, Amount()),
        )
        mine = Amount(
            max(0, int(limit.loss * part) - own.loss), max(0, int(limit.leak * part) - own.leak)
        )
        return Amount(min(left.loss, mine.loss), min(left.leak, mine.leak))

    def enter(self, entry: Entry) -> None:
        """Update the account with one entry."""
        amount = Amount(int(entry.loss), int(entry.leak))
        if entry.kind == GRANT:
            self.terms = Terms.from_json(entry.about)
            amount, self.beyond = amount + self.beyond, Amount()
        elif entry.kind == SHARE:
            self.shares[entry.analyst] = json.loads(entry.about)["share"]
        elif entry.kind == SESSION:
            about = json.loads(entry.about)
            self.sessions[entry.question] = Session(about["nonce"], about["unstable"])
            self.models.add(entry.model)
        elif entry.kind == RELEASE:
            about = json.loads(entry.about)
            self.releases[entry.question] = about
            self.beyond += Amount(int(about["beyond"]))
            self.models.add(entry.model)
        elif entry.kind == ANSWER and entry.label is not None:
            self.answers[entry.analyst, entry.question] = entry.label
            self.models.add(entry.model)
            if entry.label < 0:
                self.sessions[json.loads(entry.about)["session"]].left -= 1
        else:
            raise TamperedLedger(
                f"entry {entry.number}: "
                f"this version of holdfast cannot read an entry of kind {entry.kind!r}"
            )
        self.spent += amount
        self.by_analyst[entry.analyst] = self.by_analyst.get(entry.analyst, Amount()) + amount


class Books:
    """The accounts of all data sets."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}

    def account(self, name: str) -> Account:
        if name not in self.accounts:
            known = ", ".join(map(repr, sorted(self.accounts))) or "none"
            raise InvalidInput(
                f"no budget for the data set {name!r} (existing budgets: {known}); the owner "
                "creates it with `holdfast budget create`, or ledger.create_budget in Python"
            )
        return self.accounts[name]

    def enter(self, entry: Entry) -> None:
        if entry.kind == GRANT and entry.dataset not in self.accounts:
            self.accounts[entry.dataset] = Account(entry.dataset, Terms.from_json(entry.about))
        account = self.account(entry.dataset)
        account.enter(entry)
        if not account.spent.within(account.terms.limit):
            raise TamperedLedger(
                f"entry {entry.number}: "
                f"{entry.dataset!r} has been overspent: {account.spent} of {account.terms.limit}"
            )


@dataclass(frozen=True)
class BudgetStatus:
    """The state of a budget, in readable units. All fields are public.

    Losses are in epsilon or, if the budget has a delta, in Rényi divergence at `order`.
    `answers_left` is how many answers of the planned kind are left (none, if the budget is for a
    release), and `answers_left_by_share` how many for each analyst who has a share.
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
            len(account.answers),
            dict(account.shares),
            by_analyst,
            terms.release,
            len(account.releases),
            terms.answers_in(account.remaining()),
            {name: terms.answers_in(account.remaining(name)) for name in account.shares},
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "neighbours": self.neighbours.value,
            "unit": self.unit,
            "share_spent": self.share_spent,
        }
