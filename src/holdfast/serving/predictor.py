"""PrivatePredictor: private answers from a certificate, a mechanism and a ledger."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, overload

import torch
from torch import Tensor

from ..accounting.meter import NOTHING
from ..certificates import Certificate
from ..checks import check_name
from ..errors import BudgetExhausted, InvalidInput
from ..ledger import Ledger
from ..ledger.transaction import Transaction
from ..mechanisms import UNSTABLE, Mechanism, SeededEntropyForTests
from ..mechanisms.table import SYSTEM, Entropy
from ..models import CertifiedModel
from ..models.saved import check_signature
from ..records import as_batch
from ..workers import ONE_THREAD
from .answers import Answer, Preview, answers_like
from .charging import Charging, QueryRequest, make_charging

_LOG = logging.getLogger(__name__)
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
        self._charging = ledger.transact(partial(self._check_mechanism, mechanism))
        self._identity_hash = self._hashed(
            b"mechanism", model.run_id.encode(), self._charging.mechanism.identity.encode()
        )
        # Raises if the mechanism does not support such a model.
        self._charging.draw(self._certify(self._zero_query()), SeededEntropyForTests(0))

    def __getstate__(self) -> dict[str, Any]:
        # `_hashed` holds the owner's key.
        return {name: value for name, value in self.__dict__.items() if name != "_hashed"}

    @cached_property
    def _hashed(self) -> Callable[..., bytes]:
        return self.ledger.hasher()

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
        features, one = self._features(queries)
        asked, drawn = self._asked(features, analyst), {}
        answers = None
        # Repeat if a recorded answer was lost because the database crashed in the meantime.
        while answers is None:
            drawn = self._draw(features, asked)
            answers = self.ledger.transact(partial(self._charge_and_answer, asked, drawn))
        if len(answers) < len(asked.questions):
            raise BudgetExhausted(
                f"the budget of {self.model.dataset!r} ended, with the session, "
                f"after {len(answers)} of {len(asked.questions)} queries; "
                "those are recorded: ask for them again, free of charge"
            )
        counts = len(answers), analyst, len(drawn)
        _LOG.info("%r: %d answers to %r, %d new", self.model.dataset, *counts)
        return answers, one

    def _draw(self, features: Tensor, asked: QueryRequest) -> dict[str, Any]:
        """Certify and draw once per distinct question that is not known to be recorded."""
        rows: dict[str, int] = {}
        for row, question in enumerate(asked.questions):
            rows.setdefault(question, row)
        known = self.ledger.last_known(self.model.dataset)
        new = list(rows) if known is None else asked.unanswered(known)
        if not new:
            return {}
        if known is not None and not self._charging.cost(known, asked).within(
            known.remaining(asked.analyst)
        ):
            # If the budget is too small, raise before doing the work of an answer.
            self.ledger.transact(partial(self._afford, asked))
        chosen = (
            features
            if len(new) == len(features)
            else features[[rows[question] for question in new]]
        )
        certificate = self._certify(chosen)
        return dict(zip(new, self._charging.draw(certificate, self._entropy), strict=True))

    def _afford(self, asked: QueryRequest, transaction: Transaction) -> None:
        self._charging.require_affordable(
            transaction, transaction.books.account(self.model.dataset), asked
        )

    def _charge_and_answer(
        self, asked: QueryRequest, drawn: Mapping[str, Any], transaction: Transaction
    ) -> list[Answer] | None:
        """Charge and record new questions, and return the answers as far as the budget goes.

        Returns None if a new question has no draw.
        """
        account = transaction.books.account(self.model.dataset)
        if not drawn.keys() >= set(asked.unanswered(account)):
            return None
        costs = self._charging.record_answers(transaction, account, asked, drawn)
        shown, left = account.terms.meter.as_float, account.remaining(asked.analyst).loss
        answers = []
        for question in asked.questions:
            index = account.answers.get((asked.analyst, question))
            if index is None:
                break
            cost = shown(costs.pop(question, NOTHING).loss)
            answers.append(Answer(self._label(index), index, cost, shown(left)))
        return answers

    def _label(self, index: int) -> int | str:
        """Return the name of a class, or the index itself if there is none."""
        named = self.model.has_class_names and index != UNSTABLE
        return self.model.class_names([index])[0] if named else index

    def preview(self, queries: object, *, analyst: str = "owner") -> Preview:
        """Return what `ask` would cost; nothing is answered or charged.

        Args:
            queries: As for `ask`.
            analyst: As for `ask`.
        """
        asked = self._asked(self._features(queries)[0], analyst)

        def look(transaction: Transaction) -> Preview:
            account = transaction.books.account(self.model.dataset)
            shown, left = account.terms.meter.as_float, account.remaining(analyst)
            cost, new = self._charging.cost(account, asked), len(asked.unanswered(account))
            return Preview(
                shown(cost.loss),
                new,
                shown(left.loss),
                self._charging.unit_charge(account.terms).times_in(left),
            )

        return self.ledger.transact(look)

    def other_models_spent(self) -> bool:
        """Return whether answers of other training runs were charged to this data set's budget."""
        dataset, own = self.model.dataset, {self.model.run_id}
        return self.ledger.transact(
            lambda transaction: bool(transaction.books.account(dataset).models - own)
        )

    def _asked(self, features: Tensor, analyst: str) -> QueryRequest:
        check_name("analyst", analyst)
        questions = tuple(
            self._hashed(b"question", self._identity_hash, row.tobytes()).hex()
            for row in features.numpy()
        )
        session = self._hashed(b"session", self._identity_hash, analyst.encode()).hex()
        return QueryRequest(analyst, self.model.run_id, session, questions)

    def _features(self, queries: Any) -> tuple[Tensor, bool]:
        """Return the queries as features, and whether there was a single one."""
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
            return self.model.certify_one_by_one(features)

    def _zero_query(self) -> Tensor:
        first = self.model.members[0]
        return torch.zeros(1, *first.record_shape, dtype=first.dtype)

    def _check_mechanism(self, mechanism: Mechanism | None, transaction: Transaction) -> Charging:
        """Return how the mechanism is charged.

        Raises InvalidInput if the neighbour relations differ or if the budget does not cover one
        charge.
        """
        account = transaction.books.account(self.model.dataset)
        terms, chosen = account.terms, make_charging(mechanism, account.terms)
        if self.model.neighbours is not terms.neighbours:
            raise InvalidInput(
                f"the model is certified per {self.model.neighbours.unit}, under "
                f"{self.model.neighbours.value!r}, but the budget of {account.name!r} is counted "
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
