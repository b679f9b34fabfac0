"""PrivatePredictor: answer requests. Certify, draw, charge and record them in one transaction."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any, overload

import torch
from torch import Tensor

from ..accounting.renyi import ZERO
from ..arrays import as_batch
from ..certificates import Certificate
from ..errors import BudgetExhausted, HoldfastError, InvalidInput, LedgerUnavailable, TamperedLedger
from ..ledger import Ledger
from ..ledger.accounts import Account
from ..ledger.transaction import Standing, Transaction
from ..mechanisms import UNSTABLE, Mechanism, SeededEntropyForTests
from ..mechanisms.table import SYSTEM, Entropy
from ..models import CertifiedModel, check_signature
from ..workers import ONE_THREAD
from .charging import QueryRequest, charging_for


@dataclass(frozen=True)
class Answer:
    """The answer to one query: all that the analyst gets to see.

    Attributes:
        label: The name of the class, or its number if the classes have no names;
            `hf.mechanisms.UNSTABLE` if a SparseVector gives no label.
        index: The number of the class, or `hf.mechanisms.UNSTABLE`.
        cost: What the answer cost, in epsilon, or in Rényi divergence if the budget has a delta. A
            recorded answer costs 0.
        remaining: What is left of the budget, or of the analyst's share, in the same unit.

    Example:
        >>> import holdfast as hf
        >>> hf.Answer(label="yes", index=1, cost=0.1, remaining=9.9).label
        'yes'
    """

    label: int | str
    index: int
    cost: float
    remaining: float


@dataclass(frozen=True)
class Preview:
    """What asking would cost.

    `new` is the number of questions without a recorded answer, and `fits` the number of new answers
    that the budget still allows. For a SparseVector, `cost` is that of the next session (many
    queries may need more than one), and `fits` is a number of sessions.
    """

    cost: float
    new: int
    remaining: float
    fits: int


def answers_like(queries: Any, answers: Sequence[Answer]) -> Any:
    """Return the answers in a frame if the queries are one, of pandas or polars; else as a list.

    The frame has a column for each field of an answer, and a pandas frame keeps the queries' index.
    Where a SparseVector gives no label, a column of names holds None.
    """
    library = type(queries).__module__.partition(".")[0]
    if library not in ("pandas", "polars") or not hasattr(queries, "columns"):
        return list(answers)
    rows = [asdict(answer) for answer in answers]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    if any(isinstance(label, str) for label in columns["label"]):
        # UNSTABLE is a number; in a column of names it is None.
        columns["label"] = [None if row["index"] == UNSTABLE else row["label"] for row in rows]
    if library == "pandas":
        return type(queries)(columns, index=queries.index)
    return type(queries)(columns)


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


_LOG = logging.getLogger(__name__)


def _as_refusal(error: Exception) -> HoldfastError:
    """Return the error with which a request is refused that raised `error`."""
    if isinstance(error, HoldfastError):
        return error
    refusal = InvalidInput(f"queries: cannot be read ({type(error).__name__})")
    refusal.__cause__ = error
    return refusal


Cell = str | float | bool | None


class PrivatePredictor:
    """Private answers from a trained model or ensemble, charged to the budget of its data set.

    Args:
        model: What `train`, `train_ensemble` or `load` returned.
        ledger: The ledger that holds the budget of the model's data set.
        mechanism: By default the one that the budget was planned with. A mechanism that the budget
            cannot count, or for which it does not allow a single charge, is refused.
        entropy: The source of randomness; the operating system, except in tests.
        require_signature: Whether to refuse a model that was not saved with `save(path,
            ledger=ledger)` and loaded from that file. A signature of this ledger is checked in any
            case.

    Raises:
        InvalidInput: If model, mechanism and budget do not fit together.
        DamagedFile: If the model is not the one that was signed.
        TamperedLedger: If the ledger is not what was written to it.
        LedgerUnavailable: If the ledger cannot be reached.

    Guarantees:
        All answers together, to all analysts and from all models of the data set, are
        differentially private at the budget. An answer is returned only after it and its charge are
        on disk. If the same analyst asks the same query again, the recorded answer is returned free
        of charge; another analyst pays and gets an answer that is drawn anew. The number of boxes
        evaluated and of random bits drawn is the same for stable and unstable queries, and nothing
        is evaluated for a recorded answer.

    Example:
        >>> import holdfast as hf, torch
        >>> x, y = torch.tensor([[-1.0], [1.0]] * 50), torch.tensor([0, 1] * 50)
        >>> recipe = hf.Recipe(batch_size=100)
        >>> model, options = torch.nn.Linear(1, 2), {"dataset": "ward-7", "progress": False}
        >>> certified = hf.train(model, x, y, recipe, max_distance=5, **options)
        >>> ledger = hf.Ledger("sqlite:///ledger.db", home="keys")
        >>> status = ledger.create_budget("ward-7", hf.Budget(1.0), queries=10)
        >>> predictor = hf.PrivatePredictor(certified, ledger)
        >>> predictor.ask([1.0], analyst="ada").cost
        0.1
    """

    def __init__(
        self,
        model: CertifiedModel,
        ledger: Ledger,
        *,
        mechanism: Mechanism | None = None,
        entropy: Entropy = SYSTEM,
        require_signature: bool = False,
    ) -> None:
        if not isinstance(model, CertifiedModel):
            raise InvalidInput(
                f"model is a {type(model).__name__}: "
                "expected what hf.train, hf.train_ensemble or hf.load returned"
            )
        if not isinstance(ledger, Ledger):
            raise InvalidInput(f"ledger is a {type(ledger).__name__}: expected an hf.Ledger")
        check_signature(model, ledger, require_signature)
        self.model, self.ledger, self._entropy = model, ledger, entropy
        self._charging = ledger.transact(
            lambda transaction: charging_for(
                model, mechanism, transaction.books.account(model.dataset)
            )
        )
        self._identity_hash = self._hashed(
            b"mechanism", model.run_id.encode(), self._charging.mechanism.identity.encode()
        )
        # Raises if the mechanism does not support such a model.
        self._charging.draw(self._certify(self._zero_query()), SeededEntropyForTests(0))

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism that answers."""
        return self._charging.mechanism

    @overload
    def ask(self, queries: Sequence[float], *, analyst: str = ...) -> Answer: ...
    @overload
    def ask(self, queries: Mapping[str, Cell], *, analyst: str = ...) -> Answer: ...
    @overload
    def ask(self, queries: Sequence[Sequence[float]], *, analyst: str = ...) -> list[Answer]: ...
    @overload
    def ask(self, queries: Mapping[str, list[Any]], *, analyst: str = ...) -> list[Answer]: ...
    @overload
    def ask(self, queries: object, *, analyst: str = ...) -> Any: ...

    def ask(self, queries: object, *, analyst: str = "owner") -> Any:
        """Answer one query or several, after charging them to the budget.

        Args:
            queries: One query (a row of numbers, or a mapping from columns to cells), or several
                (an array or tensor with one row per query, a table, or a mapping from columns to
                lists).
            analyst: Who asks. The same question by the same analyst is charged once.

        Returns:
            One answer for one query, and a list of answers for several; for a data frame of pandas
            or polars, a frame of the same kind with a column for each field of an answer.

        Raises:
            BudgetExhausted: If the budget does not cover all new queries; then none is answered.
                The exception is a SparseVector, whose cost is not known beforehand: what it answers
                before the budget ends is recorded, and is free to ask again.
            InvalidInput: If the queries do not have the shape of a record.
            TamperedLedger: If the ledger is not what was written to it; nothing is answered.
            LedgerUnavailable: If the ledger cannot be reached; nothing is answered.
        """
        answers, one = self._answer(queries, analyst)
        return answers[0] if one else answers_like(queries, answers)

    def ask_all(self, queries: object, *, analyst: str = "owner") -> list[Answer]:
        """Answer queries as `ask` does, and return a list whatever kind of table they are in.

        Args:
            queries: As for `ask`.
            analyst: As for `ask`.
        """
        return self._answer(queries, analyst)[0]

    def _answer(self, queries: object, analyst: str) -> tuple[list[Answer], bool]:
        """Return the answers after charging them, and whether there was a single query."""
        request = PredictionRequest(queries, analyst)
        result = self.ask_together([request])[0]
        if isinstance(result, HoldfastError):
            raise result
        return result, request.is_single

    def preview(self, queries: object, *, analyst: str = "owner") -> Preview:
        """Return what `ask` would cost; nothing is answered or charged.

        Args:
            queries: As for `ask`.
            analyst: As for `ask`.
        """
        asked = self._asked(self.features_of(queries)[0], PredictionRequest(queries, analyst))

        def look(transaction: Transaction) -> Preview:
            standing = self._standing(asked, transaction)
            account = standing.account
            shown, left = account.terms.meter.as_float, account.remaining(asked.analyst)
            cost, new = self._charging.cost(standing, asked), len(asked.unanswered(standing))
            return Preview(
                shown(cost.loss),
                new,
                shown(left.loss),
                self._charging.unit_charge(account.terms).times_in(left),
            )

        return self.ledger.transact(look)

    def cost_of_answer(self) -> float:
        """Return what one new answer costs; for a SparseVector, one session."""

        def look(transaction: Transaction) -> float:
            terms = transaction.books.account(self.model.dataset).terms
            return terms.meter.as_float(self._charging.unit_charge(terms).loss)

        return self.ledger.transact(look)

    def other_models_spent(self) -> bool:
        """Return whether answers of other training runs were charged to this data set's budget."""
        dataset, own = self.model.dataset, {self.model.run_id}
        return self.ledger.transact(
            lambda transaction: bool(transaction.books.account(dataset).models - own)
        )

    def __getstate__(self) -> dict[str, Any]:
        # `_hashed` holds the owner's key.
        return {name: value for name, value in self.__dict__.items() if name != "_hashed"}

    @cached_property
    def _hashed(self) -> Callable[..., bytes]:
        return self.ledger.hasher()

    def ask_together(
        self, requests: Sequence[PredictionRequest]
    ) -> list[list[Answer] | HoldfastError]:
        """Answer several requests with one certification and one transaction of the ledger.

        Each request is answered, charged or refused as if it had been made alone.

        Args:
            requests: The requests, of one analyst or of several.

        Returns:
            For each request its answers, or the error that `ask` would raise.

        Raises:
            TamperedLedger: If the ledger is not what was written to it; nothing is answered.
            LedgerUnavailable: If the ledger cannot be reached; nothing is answered.
        """
        pending = [self._prepared(request) for request in requests]
        waiting = [each for each in pending if each.outcome is None]
        # Repeat if a recorded answer was lost because the database crashed in the meantime.
        while waiting:
            chosen = self._chosen(waiting)
            self._draw(chosen)
            drawn = [each for each in chosen if each.outcome is None]
            works = [partial(self._charge_and_answer, each) for each in drawn]
            for each, outcome in zip(drawn, self.ledger.transact_together(works), strict=True):
                if isinstance(outcome, Exception) and not isinstance(outcome, HoldfastError):
                    raise outcome
                each.outcome = outcome
            waiting = [each for each in waiting if each.outcome is None]
        for each in pending:
            if isinstance(each.outcome, list):
                counts = len(each.outcome), each.request.analyst, len(each.drawn)
                _LOG.info("%r: %d answers to %r, %d new", self.model.dataset, *counts)
        return [each.result(self.model.dataset) for each in pending]

    def _prepared(self, request: PredictionRequest) -> PendingRequest:
        """Return a request with its features and questions, or with the error in them."""
        try:
            features, request.is_single = self.features_of(request.queries)
            return PendingRequest(request, features, self._asked(features, request))
        except Exception as error:  # it must not become an error of the others
            return PendingRequest(request, outcome=_as_refusal(error))

    def _chosen(self, waiting: Sequence[PendingRequest]) -> list[PendingRequest]:
        """Return the requests that can be answered next, the first one among them.

        What is known to be refused gets its outcome, before any work. A request that may not fit
        with those before it waits, and so do all after it: nothing is certified that is not paid
        for, and the order is kept.
        """
        chosen: list[PendingRequest] = []
        planned, counts = ZERO, Counter[str]()
        for each in waiting:
            asked = each.asked
            known = self.ledger.last_standing(
                self.model.dataset, asked.analyst, asked.questions, asked.tag
            )
            each.new = self._new_questions(each, known)
            if each.outcome is not None:
                continue
            if known is not None and each.new:
                analyst = asked.analyst
                total = planned + self._charging.cost(known, asked)
                fits = total.within(known.account.remaining(analyst))
                if chosen and not (fits and each.is_allowed(known, counts[analyst])):
                    break
                planned = total
                counts[analyst] += len(each.new)
            chosen.append(each)
        return chosen

    def _draw(self, chosen: Sequence[PendingRequest]) -> None:
        """Certify and draw once per analyst and question that is not known to be recorded."""
        drawing = [each for each in chosen if each.outcome is None and each.new]
        if not drawing:
            return
        rows: dict[tuple[str, str], Tensor] = {}
        for each in drawing:
            rows |= each.new_rows()
        try:
            certificate = self._certify(torch.stack(list(rows.values())))
            drawn = dict(zip(rows, self._charging.draw(certificate, self._entropy), strict=True))
        except Exception as error:
            if len(drawing) == 1:
                drawing[0].outcome = _as_refusal(error)
                return
            for each in drawing:  # an error in one request must not affect the others
                self._draw([each])
            return
        for each in drawing:
            each.drawn = {question: drawn[each.asked.analyst, question] for question in each.new}

    def _new_questions(self, pending: PendingRequest, known: Standing | None) -> list[str]:
        """Return the distinct questions that are not known to be recorded.

        If the request is known to be refused, sets the outcome, before doing any work.
        """
        asked = pending.asked
        if known is None:
            return list(dict.fromkeys(asked.questions))
        new = asked.unanswered(known)
        left = known.account.remaining(asked.analyst)
        affordable = self._charging.cost(known, asked).within(left)
        if new and not (affordable and pending.is_allowed(known, 0)):
            try:
                self.ledger.transact(partial(self._afford, pending))
            except HoldfastError as error:
                if isinstance(error, TamperedLedger | LedgerUnavailable):
                    raise
                pending.outcome = error
        return new

    def _afford(self, pending: PendingRequest, transaction: Transaction) -> None:
        standing = self._standing(pending.asked, transaction)
        pending.allow(standing)
        self._charging.require_affordable(transaction, standing, pending.asked)

    def _standing(self, asked: QueryRequest, transaction: Transaction) -> Standing:
        account = transaction.books.account(self.model.dataset)
        return transaction.standing(account, asked.analyst, asked.questions, asked.tag)

    def _charge_and_answer(
        self, pending: PendingRequest, transaction: Transaction
    ) -> list[Answer] | None:
        """Charge and record new questions, and return the answers as far as the budget goes.

        Returns None if a new question has no draw.
        """
        asked = pending.asked
        standing = self._standing(asked, transaction)
        pending.allow(standing)
        costs, account = asked.recorded_costs(standing), standing.account
        if not pending.drawn.keys() >= set(asked.unanswered(standing)):
            return None
        costs |= self._charging.record_answers(transaction, standing, asked, pending.drawn)
        shown, left = account.terms.meter.as_float, account.remaining(asked.analyst).loss
        answers = []
        for question in asked.questions:
            index = standing.labels.get(question)
            if index is None:
                break
            cost = shown(costs.pop(question, ZERO).loss)
            answers.append(Answer(self.label_of(index), index, cost, shown(left)))
        return answers

    def label_of(self, index: int) -> int | str:
        """Return the name of a class, or the index itself if there is none.

        Args:
            index: The number of the class.
        """
        named = self.model.has_class_names and index != UNSTABLE
        return self.model.class_names([index])[0] if named else index

    def _asked(self, features: Tensor, request: PredictionRequest) -> QueryRequest:
        request.analyst = self.ledger.analyst_named(self.model.dataset, request.analyst)
        return hash_request(request, features, self.model.run_id, self._identity_hash, self._hashed)

    def features_of(self, queries: Any) -> tuple[Tensor, bool]:
        """Return the queries as features, and whether there was a single one.

        Only public rules are applied; nothing is answered or charged.

        Args:
            queries: As for `ask`.
        """
        queries, one = as_batch(
            queries,
            1 if self.model.preprocessing is not None else len(self.model.members[0].record_shape),
        )
        features = self.model.features(queries)
        if not len(features):
            raise InvalidInput("there are no queries: expected at least one")
        return features, one

    def _certify(self, features: Tensor) -> Certificate:
        with ONE_THREAD:
            return self.model.certify_constant_work(features)

    def _zero_query(self) -> Tensor:
        first = self.model.members[0]
        return torch.zeros(1, *first.record_shape, dtype=first.dtype)
