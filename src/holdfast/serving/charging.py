"""How a mechanism's answers are charged: each by itself, or a whole session when it begins.

Answers are drawn before the transaction, once for every distinct question that is not known to be recorded; within it,
those that are still new are charged and entered, and the others are thrown away. So work and randomness do not tell how
stable a label is, and nobody can have the same work done twice without paying twice.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..accounting.meter import Amount
from ..certificates import Certificate
from ..errors import InvalidInput
from ..ledger.accounts import Account, Terms
from ..ledger.entries import ANSWER, SESSION
from ..ledger.transaction import Transaction
from ..mechanisms import Mechanism, SparseVector
from ..mechanisms.mechanism import refuse_unsupported
from ..mechanisms.sparse_vector import UNSTABLE
from ..mechanisms.table import Entropy, place


@dataclass(frozen=True)
class Asked:
    """Who asks what of which model and mechanism, by keyed hashes."""

    analyst: str
    model: str
    session: str  # of model, mechanism and analyst
    questions: tuple[str, ...]

    def new(self, account: Account) -> list[str]:
        """Return the questions that this analyst has no answer to, each once, in the order in which they are asked."""
        return [question for question in dict.fromkeys(self.questions) if (self.analyst, question) not in account.answers]


Costs = dict[str, Amount]  # of the new questions


@dataclass(frozen=True)
class Charging(ABC):
    """A mechanism as the ledger sees it."""

    mechanism: Any
    _prices: dict[int, tuple[Terms, Amount]] = field(default_factory=dict, repr=False, compare=False)

    def each(self, terms: Terms) -> Amount:
        """Return what is charged at a time."""
        known = self._prices.get(id(terms))
        if known is None or known[0] is not terms:
            known = (terms, terms.meter.price(self.mechanism.guarantee(terms.neighbours)))
            self._prices[id(terms)] = known
        return known[1]

    @abstractmethod
    def draw(self, certificate: Certificate, entropy: Entropy) -> Sequence[Any]:
        """Return for each query what its answer will be made of."""

    @abstractmethod
    def cost(self, account: Account, asked: Asked) -> Amount:
        """What the new questions will cost, as far as it is known beforehand."""

    @abstractmethod
    def require_affordable(self, transaction: Transaction, account: Account, asked: Asked) -> None:
        """Raise BudgetExhausted if none of the new questions can be paid for, or not all if they are charged one by one."""

    @abstractmethod
    def enter(self, transaction: Transaction, account: Account, asked: Asked, drawn: Mapping[str, Any]) -> Costs:
        """Charge and enter the new questions; stops when the budget ends, with BudgetExhausted if that is at once.

        Args:
            transaction: Of the ledger.
            account: Of the data set.
            asked: The questions.
            drawn: What `draw` returned for each question; every new one must be there.
        """


@dataclass(frozen=True)
class PerAnswer(Charging):
    """Every new answer costs the same."""

    mechanism: Mechanism

    def draw(self, certificate: Certificate, entropy: Entropy) -> list[int]:
        return self.mechanism.draw(certificate, entropy)

    def cost(self, account: Account, asked: Asked) -> Amount:
        return self.each(account.terms) * len(asked.new(account))

    def require_affordable(self, transaction: Transaction, account: Account, asked: Asked) -> None:
        if new := len(asked.new(account)):
            each = self.each(account.terms)
            transaction.require_affordable(account, each * new, asked.analyst, f"{new} new answers", each)

    def enter(self, transaction: Transaction, account: Account, asked: Asked, drawn: Mapping[str, int]) -> Costs:
        self.require_affordable(transaction, account, asked)
        new, each = asked.new(account), self.each(account.terms)
        for question in new:
            transaction.add(ANSWER, account.name, asked.analyst, each, model=asked.model, question=question, label=drawn[question])
        return dict.fromkeys(new, each)


@dataclass(frozen=True)
class PerSession(Charging):
    """A sparse-vector session is paid for when it begins; it ends after a number of unstable verdicts, and the next begins.

    Every analyst has sessions of their own. A session's secret head start is not stored: it follows from the owner's key and
    the session's nonce.
    """

    mechanism: SparseVector

    def draw(self, certificate: Certificate, entropy: Entropy) -> list[tuple[int, int, int]]:
        refuse_unsupported("SparseVector", certificate, needs_distance=True)
        if certificate.reach is not None and certificate.reach < self.mechanism.tables.max_distance:
            raise InvalidInput(
                f"SparseVector: max_distance={self.mechanism.tables.max_distance}, and this model is certified to {certificate.reach}; "
                f"make it with max_distance={certificate.reach}, or train farther"
            )
        pairs = zip(certificate.labels.tolist(), certificate.distances.tolist(), strict=True)
        return [(label, distance, entropy.draw()) for label, distance in pairs]

    def cost(self, account: Account, asked: Asked) -> Amount:
        return Amount() if _left(account, asked) or not asked.new(account) else self.each(account.terms)

    def require_affordable(self, transaction: Transaction, account: Account, asked: Asked) -> None:
        if asked.new(account) and not _left(account, asked):
            transaction.require_affordable(account, self.each(account.terms), asked.analyst, "a new session")

    def enter(self, transaction: Transaction, account: Account, asked: Asked, drawn: Mapping[str, tuple[int, int, int]]) -> Costs:
        self.require_affordable(transaction, account, asked)
        each = self.each(account.terms)
        costs: Costs = {}
        for question in asked.new(account):
            begins = not _left(account, asked)
            if begins and not each.within(account.remaining(asked.analyst)):
                break
            if begins:
                self._begin(transaction, account, asked, each)
            verdict = self._verdict(transaction, account, asked, *drawn[question])
            about = json.dumps({"session": asked.session})
            transaction.add(ANSWER, account.name, asked.analyst, model=asked.model, question=question, label=verdict, about=about)
            costs[question] = each if begins else Amount()
        return costs

    def _begin(self, transaction: Transaction, account: Account, asked: Asked, each: Amount) -> None:
        about = json.dumps({"nonce": secrets.token_hex(16), "unstable": self.mechanism.tables.unstable})
        transaction.add(SESSION, account.name, asked.analyst, each, model=asked.model, question=asked.session, about=about)

    def _verdict(self, transaction: Transaction, account: Account, asked: Asked, label: int, distance: int, number: int) -> int:
        tables = self.mechanism.tables
        secret = transaction.keyed_hash(b"head start", account.sessions[asked.session].nonce.encode())
        head = place(tables.heads, int.from_bytes(secret[:16], "little"))
        return UNSTABLE if number < tables.doubt(distance, head) else label


def _left(account: Account, asked: Asked) -> int:
    """How many unstable verdicts the open session has left; 0 where none is open."""
    return account.sessions[asked.session].left if asked.session in account.sessions else 0


def charging(mechanism: Any, terms: Terms) -> Charging:
    """Of the mechanism given; of the usual one for the budget's plan, if none is."""
    if mechanism is None:
        return PerAnswer(terms.default_mechanism())
    if isinstance(mechanism, SparseVector):
        return PerSession(mechanism)
    if isinstance(mechanism, Mechanism):
        return PerAnswer(mechanism)
    raise InvalidInput(f"mechanism is a {type(mechanism).__name__}: expected one of holdfast's, for example hf.StableResponse(0.1)")
