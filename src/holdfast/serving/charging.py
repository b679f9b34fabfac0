"""Charging: draw, charge and record the answers of a mechanism, per answer or per session.

Answers are drawn before the transaction, once per distinct question that is not known to be
recorded. Within the transaction, those that are still new are charged and recorded, and the others
are discarded. So work and randomness do not reveal how stable a label is, and the work for one
question is never repeated without another charge.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..accounting.renyi import ZERO, Amount
from ..certificates import Certificate
from ..errors import InvalidInput
from ..ledger.accounts import REQUEST, Account, Terms
from ..ledger.entries import ANSWER, SESSION
from ..ledger.transaction import Standing, Transaction
from ..mechanisms import AnswerMechanism, Mechanism, SparseVector
from ..mechanisms.table import Entropy
from ..models import CertifiedModel

Costs = dict[str, Amount]  # by new question


@dataclass(frozen=True)
class QueryRequest:
    """A request: the analyst, the model, and keyed hashes of the session and the questions."""

    analyst: str
    model: str
    session: str  # keyed hash of model, mechanism and analyst
    questions: tuple[str, ...]
    retriable: tuple[str, str] | None = None  # keyed hashes of an idempotency key and the content

    @property
    def tag(self) -> str:
        """The tag under which it may be retried; empty if it has none."""
        return "" if self.retriable is None else self.retriable[0]

    def unanswered(self, standing: Standing) -> list[str]:
        """Return the distinct questions that this analyst has no recorded answer to, in order."""
        return [
            question
            for question in dict.fromkeys(self.questions)
            if question not in standing.labels
        ]

    def recorded_costs(self, standing: Standing) -> Costs:
        """Return what the new questions cost when this request was made for the first time.

        Raises:
            InvalidInput: If another request was made with the same idempotency key.
        """
        before = standing.request
        if self.retriable is None or before is None:
            return {}
        if before.content != self.retriable[1]:
            raise InvalidInput(
                "this idempotency key was used for other queries; nothing was answered or "
                "charged; use a new key for each request, and the same one only to retry it"
            )
        return dict(before.costs)

    def about(self, **facts: str) -> str:
        """Return the JSON of an entry for one of the questions; empty if there are no facts."""
        found: dict[str, Any] = facts
        if self.retriable is not None:
            found = {**facts, REQUEST: self.retriable}
        return json.dumps(found) if found else ""


@dataclass(frozen=True)
class Charging(ABC):
    """How the answers of a mechanism are drawn, charged and recorded in the ledger."""

    mechanism: Mechanism
    _prices: dict[int, tuple[Terms, Amount]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def unit_charge(self, terms: Terms) -> Amount:
        """Return the amount of one charge."""
        known = self._prices.get(id(terms))
        if known is None or known[0] is not terms:
            known = (terms, terms.meter.price(self.mechanism.guarantee(terms.neighbours)))
            self._prices[id(terms)] = known
        return known[1]

    @abstractmethod
    def draw(self, certificate: Certificate, entropy: Entropy) -> Sequence[Any]:
        """Return, per query, the draw from which `record_answers` determines the answer."""

    @abstractmethod
    def cost(self, standing: Standing, asked: QueryRequest) -> Amount:
        """Return what the new questions will cost, as far as it is known beforehand."""

    @abstractmethod
    def require_affordable(
        self, transaction: Transaction, standing: Standing, asked: QueryRequest
    ) -> None:
        """Raise BudgetExhausted if the budget does not cover the new questions.

        If answers are charged one by one, all of them must be covered; if sessions are charged, at
        least the first new question must be.
        """

    @abstractmethod
    def record_answers(
        self,
        transaction: Transaction,
        standing: Standing,
        asked: QueryRequest,
        drawn: Mapping[str, Any],
    ) -> Costs:
        """Charge and record the new questions, and return their costs.

        Stops when the budget ends; raises BudgetExhausted if that is before the first new question.

        Args:
            transaction: The transaction of the ledger.
            standing: The account, and what is recorded; the new answers are added.
            asked: The questions.
            drawn: What `draw` returned for each question; it must hold every new one.
        """


@dataclass(frozen=True)
class PerAnswer(Charging):
    """Charges the same amount for every new answer."""

    mechanism: AnswerMechanism

    def draw(self, certificate: Certificate, entropy: Entropy) -> list[int]:
        return self.mechanism.draw(certificate, entropy)

    def cost(self, standing: Standing, asked: QueryRequest) -> Amount:
        return self.unit_charge(standing.account.terms) * len(asked.unanswered(standing))

    def require_affordable(
        self, transaction: Transaction, standing: Standing, asked: QueryRequest
    ) -> None:
        if new := len(asked.unanswered(standing)):
            each = self.unit_charge(standing.account.terms)
            transaction.require_affordable(
                standing.account, each * new, asked.analyst, f"{new} new answers", each
            )

    def record_answers(
        self,
        transaction: Transaction,
        standing: Standing,
        asked: QueryRequest,
        drawn: Mapping[str, int],
    ) -> Costs:
        self.require_affordable(transaction, standing, asked)
        account, new = standing.account, asked.unanswered(standing)
        each = self.unit_charge(account.terms)
        for question in new:
            transaction.add(
                ANSWER,
                account.name,
                asked.analyst,
                each,
                model=asked.model,
                question=question,
                label=drawn[question],
                about=asked.about(),
            )
            standing.labels[question] = drawn[question]
        return dict.fromkeys(new, each)


@dataclass(frozen=True)
class PerSession(Charging):
    """Charges for a sparse-vector session when it begins.

    A session ends after a given number of unstable verdicts, and the next one begins. Every analyst
    has separate sessions. The secret head start of a session is not stored: it is derived from the
    owner's key and the session's nonce.
    """

    mechanism: SparseVector

    def draw(self, certificate: Certificate, entropy: Entropy) -> list[tuple[int, int, int]]:
        self.mechanism.check(certificate)
        pairs = zip(certificate.labels.tolist(), certificate.distances.tolist(), strict=True)
        return [(label, distance, entropy.draw()) for label, distance in pairs]

    def cost(self, standing: Standing, asked: QueryRequest) -> Amount:
        return (
            ZERO
            if _verdicts_left(standing.account, asked) or not asked.unanswered(standing)
            else self.unit_charge(standing.account.terms)
        )

    def require_affordable(
        self, transaction: Transaction, standing: Standing, asked: QueryRequest
    ) -> None:
        account = standing.account
        if asked.unanswered(standing) and not _verdicts_left(account, asked):
            transaction.require_affordable(
                account, self.unit_charge(account.terms), asked.analyst, "a new session"
            )

    def record_answers(
        self,
        transaction: Transaction,
        standing: Standing,
        asked: QueryRequest,
        drawn: Mapping[str, tuple[int, int, int]],
    ) -> Costs:
        self.require_affordable(transaction, standing, asked)
        account = standing.account
        each = self.unit_charge(account.terms)
        costs: Costs = {}
        for question in asked.unanswered(standing):
            begins = not _verdicts_left(account, asked)
            if begins and not each.within(account.remaining(asked.analyst)):
                break
            if begins:
                self._begin(transaction, account, asked, each)
            verdict = self._verdict(transaction, account, asked, *drawn[question])
            about = asked.about(session=asked.session)
            transaction.add(
                ANSWER,
                account.name,
                asked.analyst,
                model=asked.model,
                question=question,
                label=verdict,
                about=about,
            )
            standing.labels[question] = verdict
            costs[question] = each if begins else ZERO
        return costs

    def _begin(
        self, transaction: Transaction, account: Account, asked: QueryRequest, each: Amount
    ) -> None:
        about = json.dumps({"nonce": secrets.token_hex(16), "unstable": self.mechanism.unstable})
        transaction.add(
            SESSION,
            account.name,
            asked.analyst,
            each,
            model=asked.model,
            question=asked.session,
            about=about,
        )

    def _verdict(
        self,
        transaction: Transaction,
        account: Account,
        asked: QueryRequest,
        label: int,
        distance: int,
        number: int,
    ) -> int:
        nonce = account.sessions[asked.session].nonce
        secret = transaction.keyed_hash(b"head start", nonce.encode())
        session = self.mechanism.session(entropy=_Derived(int.from_bytes(secret[:16], "little")))
        return session.verdict(label, distance, number)


@dataclass(frozen=True)
class _Derived:
    """An entropy source that returns one number, derived from the owner's key."""

    number: int

    def draw(self) -> int:
        return self.number


def _verdicts_left(account: Account, asked: QueryRequest) -> int:
    """Return how many unstable verdicts the open session has left; 0 if none is open."""
    return account.sessions[asked.session].left if asked.session in account.sessions else 0


def make_charging(mechanism: Mechanism | None, terms: Terms) -> Charging:
    """Return how to charge `mechanism`, or the budget's default mechanism if it is None."""
    if mechanism is None:
        return PerAnswer(terms.default_mechanism())
    if isinstance(mechanism, SparseVector):
        return PerSession(mechanism)
    if isinstance(mechanism, AnswerMechanism):
        return PerAnswer(mechanism)
    raise InvalidInput(
        f"mechanism is a {type(mechanism).__name__}: "
        "expected one of holdfast's mechanisms, for example hf.StableResponse(0.1)"
    )


def charging_for(model: CertifiedModel, mechanism: Mechanism | None, account: Account) -> Charging:
    """Return how the mechanism, or the budget's own, is charged for answers of the model.

    Raises:
        InvalidInput: If the neighbour relations differ, or the budget does not cover one charge.
    """
    terms, chosen = account.terms, make_charging(mechanism, account.terms)
    if model.neighbours is not terms.neighbours:
        raise InvalidInput(
            f"the model is certified per {model.neighbours.unit}, under "
            f"{model.neighbours.value!r}, but the budget of {account.name!r} is counted "
            f"per {terms.neighbours.unit}, under {terms.neighbours.value!r}; "
            "train under the same relation"
        )
    each = chosen.unit_charge(terms)
    if each.leak > terms.limit.leak:
        raise InvalidInput(
            f"the mechanism has a delta of its own, but the budget of {account.name!r} "
            f"reserves only {terms.reserve:g} for that; "
            "create the budget with a larger reserve="
        )
    if each.loss > terms.limit.loss:
        raise InvalidInput(
            f"one charge of this mechanism, {terms.meter.as_float(each.loss):g} in "
            f"{terms.meter.name}, is more than the whole budget of "
            f"{account.name!r} allows, {terms.meter.as_float(terms.limit.loss):g}; use a "
            "smaller epsilon, or one made for more queries"
        )
    return chosen
