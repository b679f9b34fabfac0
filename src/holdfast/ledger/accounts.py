"""Accounts: what was granted for each data set, and what the entries have spent of it.

An account is the sum of the entries, read in order; a checkpoint holds the sum of the first ones.
Recorded answers, requests that may be retried, and released weights are not part of it: they are
looked up in the entries (checkpoints.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from fractions import Fraction
from functools import cached_property
from typing import Any

from ..accounting import Budget, per_query_epsilon
from ..accounting.budget import as_decimal
from ..accounting.renyi import (
    DELTA_UNIT,
    Amount,
    Meter,
    best_order,
    best_release_order,
    require_delta,
)
from ..checks import as_float_or_nan, canonical_name, check_integer, check_name, check_new_name
from ..errors import InvalidInput, TamperedLedger
from ..mechanisms import AnswerMechanism, BudgetedResponse, StableResponse
from ..relations import Neighbours
from .entries import (
    ANSWER,
    CLOSE,
    GRANT,
    KEY,
    RELEASE,
    RESTORE,
    REVOKE,
    SESSION,
    SHARE,
    Entry,
)
from .key_store import Totals
from .keys import AccessKey


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


REQUEST = "request"
"""Where an entry's JSON holds the tag and the content's hash of a request that may be retried."""

_MINUTES = 16  # the most minutes per analyst that are remembered, over all clocks


@dataclass
class Session:
    """A sparse-vector session.

    Its secret is derived from the nonce and the owner's key. `left` is the number of unstable
    verdicts until it ends.
    """

    nonce: str
    left: int


@dataclass(slots=True)
class RetriableRequest:
    """What was charged for a request that has an idempotency key.

    `content` is a keyed hash of the request's content, and `costs` what each new question cost.
    """

    content: str
    costs: dict[str, Amount] = field(default_factory=dict)


def request_of(entry: Entry) -> tuple[str, str] | None:
    """Return the tag and the content's hash of the request that an entry belongs to, if any."""
    if entry.kind != ANSWER or REQUEST not in entry.about:
        return None
    found = json.loads(entry.about).get(REQUEST)
    return None if found is None else (found[0], found[1])


@dataclass
class Account:
    """Everything that was granted, spent and answered for one data set."""

    name: str
    terms: Terms
    spent: Amount = field(default_factory=Amount)
    shares: dict[str, float] = field(default_factory=dict)
    by_analyst: dict[str, Amount] = field(default_factory=dict)
    answers: int = 0  # how many were given
    entries: int = 0  # how many entries there are
    sessions: dict[str, Session] = field(default_factory=dict)  # the latest per session hash
    models: set[str] = field(default_factory=set)
    releases: dict[str, int] = field(default_factory=dict)  # numbers of their entries, by question
    # What a release that took the budget whole costs beyond it, once the budget is raised.
    beyond: Amount = field(default_factory=Amount)
    closed: str = ""  # the reason, if the budget was closed
    keys: dict[str, AccessKey] = field(default_factory=dict)  # by id
    events: list[Entry] = field(default_factory=list)  # the owner's acts: grants, shares, keys
    by_day: dict[str, dict[str, int]] = field(default_factory=dict)  # loss per day and analyst
    # By analyst, the numbers of new answers in the last minutes in which there were any.
    by_minute: dict[str, dict[str, int]] = field(default_factory=dict)
    _spellings: dict[str, str] = field(default_factory=dict)  # analysts by their canonical names

    def answers_since(self, analyst: str, minute: str) -> int:
        """Return how many new answers an analyst got in this minute, or later by other clocks.

        What a clock has written that is more than five minutes ahead does not count: it was wrong.
        """
        # This is also called as a hint, while another thread enters entries.
        counts = self.by_minute.get(analyst, {})
        return sum(counts.get(each, 0) for each in _plausible(list(counts), minute))

    def analyst_named(self, name: str) -> str:
        """Return the analyst of this account whom a name means, or a new name.

        Names of older versions keep their bytes. A name means the analyst with the same bytes,
        otherwise one with the same canonical form.

        Raises:
            InvalidInput: If it is a new name that is not valid.
        """
        if check_name("analyst", name) in self.by_analyst:
            return name
        return self._spellings.get(canonical_name(name)) or check_new_name("analyst", name)

    @property
    def untouched(self) -> bool:
        """Whether nothing was answered or released yet."""
        return self.spent == Amount() and not (self.answers or self.sessions or self.releases)

    def remaining(self, analyst: str | None = None) -> Amount:
        """Return what is left of the budget, or of the analyst's share if that is less."""
        left = Amount() if self.closed else self.terms.limit - self.spent
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

    @property
    def totals(self) -> Totals:
        """What the head outside the database keeps of this account."""
        spent, limit = self.spent, self.terms.limit
        return Totals(
            spent.loss, spent.leak, self.beyond.loss, limit.loss, limit.leak, bool(self.closed)
        )

    def enter(self, entry: Entry) -> None:
        """Update the account with one entry."""
        amount = Amount(int(entry.loss), int(entry.leak))
        self.entries += 1
        if entry.kind in (GRANT, SHARE, CLOSE, KEY, REVOKE, RESTORE):
            self.events.append(entry)
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
            self.releases[entry.question] = entry.number
            self.beyond += Amount(int(json.loads(entry.about)["beyond"]))
            self.models.add(entry.model)
        elif entry.kind == CLOSE:
            self.closed = json.loads(entry.about)["reason"]
        elif entry.kind == RESTORE:
            self._enter_restore(json.loads(entry.about))
        elif entry.kind == KEY:
            self.keys[entry.question] = AccessKey.of(entry)
        elif entry.kind == REVOKE:
            self.keys[entry.question] = self.keys[entry.question].ended_by(entry)
        elif entry.kind == ANSWER and entry.label is not None:
            self._enter_answer(entry, entry.label, amount)
        else:
            raise TamperedLedger(
                f"entry {entry.number}: "
                f"this version of holdfast cannot read an entry of kind {entry.kind!r}"
            )
        self.spent += amount
        if entry.analyst not in self.by_analyst:
            self._spellings.setdefault(canonical_name(entry.analyst), entry.analyst)
        self.by_analyst[entry.analyst] = self.by_analyst.get(entry.analyst, Amount()) + amount
        if amount.loss:
            day = self.by_day.setdefault(entry.time[:10], {})
            day[entry.analyst] = day.get(entry.analyst, 0) + amount.loss

    def _enter_restore(self, about: dict[str, Any]) -> None:
        """End what may have ended among the entries that were lost: sessions, keys, the budget."""
        self.beyond = Amount(int(about["beyond"]))
        self.sessions = {}
        self.keys = {name: replace(key, revoked=True) for name, key in self.keys.items()}
        self.closed = self.closed or about["closed"]

    def _enter_answer(self, entry: Entry, label: int, amount: Amount) -> None:
        self.answers += 1
        self.models.add(entry.model)
        counts = self.by_minute.setdefault(entry.analyst, {})
        # A host whose clock is behind counts towards the latest minute that another has written.
        minute = max(_plausible(counts, entry.time[:16]), default=entry.time[:16])
        counts[minute] = counts.pop(minute, 0) + 1
        if len(counts) > _MINUTES:
            del counts[next(iter(counts))]  # the one to which nothing was added for longest
        if label < 0:
            self.sessions[json.loads(entry.about)["session"]].left -= 1

    def as_dict(self) -> dict[str, Any]:
        """Return the account, ready for JSON."""
        return {
            "name": self.name,
            "terms": self.terms.as_json(),
            "spent": _pair(self.spent),
            "shares": self.shares,
            "by_analyst": {name: _pair(amount) for name, amount in self.by_analyst.items()},
            "answers": self.answers,
            "entries": self.entries,
            "sessions": {name: [each.nonce, each.left] for name, each in self.sessions.items()},
            "models": sorted(self.models),
            "releases": self.releases,
            "beyond": _pair(self.beyond),
            "closed": self.closed,
            "keys": [key.as_fields() for key in self.keys.values()],
            "events": [list(entry) for entry in self.events],
            "by_day": self.by_day,
            "by_minute": self.by_minute,
        }

    @classmethod
    def from_dict(cls, about: dict[str, Any]) -> Account:
        """Return the account that `as_dict` has described."""
        keys = [AccessKey.from_fields(fields) for fields in about["keys"]]
        by_analyst = {name: Amount(*amount) for name, amount in about["by_analyst"].items()}
        account = cls(
            **{name: about[name] for name in _PLAIN},
            terms=Terms.from_json(about["terms"]),
            spent=Amount(*about["spent"]),
            by_analyst=by_analyst,
            sessions={name: Session(*fields) for name, fields in about["sessions"].items()},
            models=set(about["models"]),
            beyond=Amount(*about["beyond"]),
            keys={key.id: key for key in keys},
            events=[Entry._make(fields) for fields in about["events"]],
        )
        for name in by_analyst:
            account._spellings.setdefault(canonical_name(name), name)
        return account


def _pair(amount: Amount) -> list[int]:
    return [amount.loss, amount.leak]


_PLAIN = ("name", "shares", "answers", "entries", "releases", "closed", "by_day", "by_minute")


def _plausible(minutes: Iterable[str], now: str) -> list[str]:
    """Return this minute and those ahead of it by at most five, as other clocks may be."""
    found = [minute for minute in minutes if minute >= now]
    if found in ([], [now]):
        return found
    latest = (datetime.fromisoformat(now) + timedelta(minutes=5)).isoformat(timespec="minutes")
    return [minute for minute in found if minute <= latest]


class Accounts:
    """The accounts of all data sets."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        # Seals, by number, of entries that were lost, and that a restored backup accounts for.
        self.replaced: dict[int, str] = {}
        self.lost: dict[str, str] = {}  # why data sets without an account cannot have one
        self._spellings: dict[str, str] = {}  # data sets by their canonical names

    @property
    def names(self) -> list[str]:
        """The data sets that have, or had, a budget."""
        return [*self.accounts, *self.lost]

    def refuse_lost(self, name: str) -> None:
        """Raise InvalidInput if the budget of a data set was lost when a backup was restored."""
        for lost, reason in self.lost.items():
            if canonical_name(lost) == canonical_name(name):
                raise InvalidInput(f"the budget of {lost!r} is closed for good ({reason})")

    def find(self, name: str) -> Account | None:
        """Return the account of a data set, by its name's bytes or else by its canonical form."""
        if name not in self.accounts:
            name = self._spellings.get(canonical_name(name), name)
        return self.accounts.get(name)

    def account(self, name: str) -> Account:
        """Return the account of a data set as `find` does; raise InvalidInput if there is none."""
        account = self.find(name)
        if account is None:
            self.refuse_lost(name)
            known = ", ".join(map(repr, sorted(self.accounts))) or "none"
            raise InvalidInput(
                f"no budget for the data set {name!r} (existing budgets: {known}); the owner "
                "creates it with `holdfast budget create`, or ledger.create_budget in Python"
            )
        return account

    def as_dict(self) -> dict[str, Any]:
        """Return the books, ready for JSON."""
        return {
            "accounts": [account.as_dict() for account in self.accounts.values()],
            "replaced": [list(pair) for pair in self.replaced.items()],
            "lost": self.lost,
        }

    @classmethod
    def from_dict(cls, about: dict[str, Any]) -> Accounts:
        """Return the books that `as_dict` has described."""
        books = cls()
        for account in about["accounts"]:
            books._open(Account.from_dict(account))
        books.replaced = dict(about["replaced"])
        books.lost = about["lost"]
        return books

    def totals(self) -> Iterator[tuple[str, Totals]]:
        """Yield the name and the totals of each account, those that can still be charged first."""
        for account in sorted(self.accounts.values(), key=lambda account: bool(account.closed)):
            yield account.name, account.totals
        for name in self.lost:
            yield name, Totals(0, 0, 0, 0, 0, True)

    def _open(self, account: Account) -> None:
        self._spellings.setdefault(canonical_name(account.name), account.name)
        self.accounts[account.name] = account

    def enter(self, entry: Entry) -> None:
        if entry.kind == GRANT and entry.dataset not in self.accounts:
            self._open(Account(entry.dataset, Terms.from_json(entry.about)))
        if entry.kind == RESTORE:
            about = json.loads(entry.about)
            self.replaced[about["number"]] = about["seal"]
            if entry.dataset not in self.accounts:
                self.lost[entry.dataset] = about["closed"]
                return
        account = self.account(entry.dataset)
        account.enter(entry)
        # What was lost with a later raise may exceed the budget that is known: it is closed then.
        if not account.closed and not account.spent.within(account.terms.limit):
            raise TamperedLedger(
                f"entry {entry.number}: "
                f"{entry.dataset!r} has been overspent: {account.spent} of {account.terms.limit}"
            )


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
