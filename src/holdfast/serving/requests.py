"""Requests: what analysts ask, on its way from the queries to the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..errors import BudgetExhausted, HoldfastError
from ..ledger.accounts import Account
from ..ledger.transaction import Standing
from .answers import Answer
from .charging import QueryRequest

Allow = Callable[[Account, int], None]


@dataclass
class PredictionRequest:
    """A request for answers.

    Args:
        queries: As for `PrivatePredictor.ask`.
        analyst: Who asks.
        idempotency_key: If the analyst sends the same key and queries again, the answers and costs
            of the first time are returned.
        allow: Called in the ledger's transaction, before anything is charged, with the account and
            the number of new questions; it may raise an error of holdfast.
        is_single: Whether there is a single query; set when the queries are read.
    """

    queries: object
    analyst: str
    idempotency_key: str = ""
    allow: Allow | None = None
    is_single: bool = False


def hash_request(
    request: PredictionRequest,
    features: Tensor,
    run_id: str,
    identity: bytes,
    hashed: Callable[..., bytes],
) -> QueryRequest:
    """Return a request as the ledger knows it: keyed hashes of its questions.

    Args:
        request: The request, with the analyst's name as the ledger has it.
        features: Its queries as features, one row for each.
        run_id: The id of the training run.
        identity: A keyed hash of the training run and of the mechanism.
        hashed: The ledger's keyed hash.
    """
    analyst = request.analyst
    questions = tuple(
        hashed(b"question", identity, row.tobytes()).hex() for row in features.numpy()
    )
    session = hashed(b"session", identity, analyst.encode()).hex()
    retriable = None
    if request.idempotency_key:
        key = hashed(b"request", identity, analyst.encode(), request.idempotency_key.encode())
        content = hashed(b"content", "".join(questions).encode())
        retriable = (key.hex()[:32], content.hex()[:32])  # every process keeps them in memory
    return QueryRequest(analyst, run_id, session, questions, retriable)


_NOTHING_ASKED = QueryRequest("", "", "", ())


@dataclass
class PendingRequest:
    """A request with its features, its questions, and what was drawn for the new ones."""

    request: PredictionRequest
    features: Tensor | None = None
    asked: QueryRequest = _NOTHING_ASKED
    new: list[str] = field(default_factory=list)
    drawn: dict[str, Any] = field(default_factory=dict)
    outcome: list[Answer] | HoldfastError | None = None

    def new_rows(self) -> dict[tuple[str, str], Tensor]:
        """Return the features of the new questions, by analyst and question."""
        assert self.features is not None
        new, rows = set(self.new), zip(self.asked.questions, self.features, strict=True)
        return {(self.asked.analyst, question): row for question, row in rows if question in new}

    def allow(self, standing: Standing, others: int = 0) -> None:
        """Raise the error with which this request is refused, if it is.

        Args:
            standing: The account of the data set, and what is recorded of this request.
            others: How many new answers of the same analyst are to be counted with its own.
        """
        self.asked.recorded_costs(standing)  # raises if its idempotency key was used otherwise
        if self.request.allow is not None:
            new = len(self.asked.unanswered(standing))
            self.request.allow(standing.account, others + new)

    def is_allowed(self, standing: Standing, others: int) -> bool:
        """Return whether this request would not be refused."""
        try:
            self.allow(standing, others)
        except HoldfastError:
            return False
        return True

    def result(self, dataset: str) -> list[Answer] | HoldfastError:
        """Return the answers, or the error; fewer answers than questions are an error."""
        outcome, expected = self.outcome, len(self.asked.questions)
        assert outcome is not None
        if isinstance(outcome, HoldfastError) or len(outcome) == expected:
            return outcome
        return BudgetExhausted(
            f"the budget of {dataset!r} ended, with the session, after {len(outcome)} of "
            f"{expected} queries; those are recorded: ask for them again, free of charge"
        )
