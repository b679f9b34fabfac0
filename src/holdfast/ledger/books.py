"""Books: what follows from the entries, read in order. Nothing here is stored: it is the entries, added up."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

from ..accounting import Budget
from ..accounting.budget import written
from ..errors import InvalidInput, TamperedLedger
from ..relations import Neighbours
from .entries import ANSWER, GRANT, SESSION, SHARE, Entry
from .meter import LEAK_UNIT, Amount
from .terms import Terms


@dataclass
class Session:
    """A sparse-vector session: from the nonce and the owner's key its secret follows; `left`: unstable verdicts."""

    nonce: str
    left: int


@dataclass
class Account:
    """All that was granted, spent and answered for one data set."""

    name: str
    terms: Terms
    spent: Amount = field(default_factory=Amount)
    shares: dict[str, float] = field(default_factory=dict)
    by_analyst: dict[str, Amount] = field(default_factory=dict)
    answers: dict[tuple[str, str], int] = field(default_factory=dict)  # by analyst and question
    sessions: dict[str, Session] = field(default_factory=dict)  # the latest of each mark
    models: set[str] = field(default_factory=set)

    def remaining(self, analyst: str | None = None) -> Amount:
        """What is left of the budget; for an analyst with a share, of that too, if it is less."""
        left = self.terms.limit - self.spent
        if analyst not in self.shares:
            return left
        part, limit, own = Fraction(written(self.shares[analyst])), self.terms.limit, self.by_analyst.get(analyst, Amount())
        mine = Amount(max(0, int(limit.loss * part) - own.loss), max(0, int(limit.leak * part) - own.leak))
        return Amount(min(left.loss, mine.loss), min(left.leak, mine.leak))

    def enter(self, entry: Entry) -> None:
        """Add up one entry."""
        amount = Amount(int(entry.loss), int(entry.leak))
        if entry.kind == GRANT:
            self.terms = Terms.of_json(entry.about)
        elif entry.kind == SHARE:
            self.shares[entry.analyst] = json.loads(entry.about)["share"]
        elif entry.kind == SESSION:
            about = json.loads(entry.about)
            self.sessions[entry.question] = Session(about["nonce"], about["unstable"])
            self.models.add(entry.model)
        elif entry.kind == ANSWER and entry.label is not None:
            self.answers[entry.analyst, entry.question] = entry.label
            self.models.add(entry.model)
            if entry.label < 0:
                self.sessions[json.loads(entry.about)["session"]].left -= 1
        else:
            raise TamperedLedger(f"entry {entry.number}: of the kind {entry.kind!r}, which this version of holdfast does not know")
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
                f"no budget for the data set {name!r} (there are: {known}); the owner creates it: "
                f"ledger.create_budget({name!r}, hf.Budget(epsilon, delta)), or holdfast budget create"
            )
        return self.accounts[name]

    def enter(self, entry: Entry) -> None:
        if entry.kind == GRANT and entry.dataset not in self.accounts:
            self.accounts[entry.dataset] = Account(entry.dataset, Terms.of_json(entry.about))
        account = self.account(entry.dataset)
        account.enter(entry)
        if not account.spent.within(account.terms.limit):
            raise TamperedLedger(f"entry {entry.number}: {entry.dataset!r} has been overspent: {account.spent} of {account.terms.limit}")


@dataclass(frozen=True)
class BudgetStatus:
    """A budget as people read it. Losses are in epsilon, or in Renyi divergence at `order`; all of it is public."""

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

    @classmethod
    def of(cls, account: Account) -> BudgetStatus:
        terms, shown = account.terms, account.terms.meter.shown
        by_analyst = {name: shown(amount.loss) for name, amount in account.by_analyst.items() if name}
        return cls(
            account.name, terms.budget, terms.neighbours, terms.order, terms.reserve, terms.queries, shown(terms.limit.loss),
            shown(account.spent.loss), shown(account.remaining().loss), float(account.spent.leak * LEAK_UNIT), len(account.answers),
            dict(account.shares), by_analyst,
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "neighbours": self.neighbours.value}
