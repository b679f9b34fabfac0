"""PrivatePredictor: where certificate, mechanism and ledger meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..accounting.meter import Amount
from ..certificates import Certificate
from ..checks import check_name
from ..errors import BudgetExhausted, InvalidInput
from ..ledger import Ledger
from ..ledger.transaction import Transaction
from ..mechanisms import Mechanism, SeededEntropyForTests, SparseVector
from ..mechanisms.table import SYSTEM, Entropy
from ..models.certified import Certified
from ..models.ensemble import CertifiedEnsemble
from ..models.saved import check_signature
from ..workers import ONE_THREAD
from .charging import Asked, Charging, charging

_FREE = Amount()


@dataclass(frozen=True)
class Answer:
    """All that whoever asked gets to see. `label`: the number of the class (UNSTABLE: none, by a SparseVector).

    `cost` and `remaining`: in epsilon, or in Renyi divergence where the budget has a delta. A recorded answer costs 0.
    """

    label: int
    cost: float
    remaining: float


@dataclass(frozen=True)
class Preview:
    """What asking would cost. `new`: questions without a recorded answer; `fits`: how many new answers the budget still
    allows. Of a SparseVector `cost` is that of the next session, of which many queries may need more; `fits` counts sessions."""

    cost: float
    new: int
    remaining: float
    fits: int


class PrivatePredictor:
    """Private answers from a trained model or ensemble, charged to the budget of its data set.

    `mechanism`: by default the one that the budget was planned with. A mechanism that the budget cannot count, or of which
    it does not allow a single answer, is refused here. `require_signature`: refuse a model that was not saved with
    `save(path, ledger=ledger)` and loaded from that file; a signature of this ledger is checked in any case.

    Guarantees
    ----------
    All answers together, to all analysts and from all models of the data set, are differentially private at the budget.
    An answer leaves only after it and its charge are on disk. The same analyst asking the same again gets the recorded
    answer, free of charge; another analyst pays, and gets an answer drawn afresh. The number of boxes evaluated and of
    random bits drawn is the same for stable and unstable queries, and nothing is evaluated for a recorded answer.
    """

    def __init__(
        self,
        model: Certified | CertifiedEnsemble,
        ledger: Ledger,
        mechanism: Mechanism | SparseVector | None = None,
        entropy: Entropy = SYSTEM,
        require_signature: bool = False,
    ) -> None:
        if not isinstance(model, Certified | CertifiedEnsemble):
            raise InvalidInput(f"model is a {type(model).__name__}: expected what hf.train, hf.train_ensemble or hf.load returned")
        if not isinstance(ledger, Ledger):
            raise InvalidInput(f"ledger is a {type(ledger).__name__}: expected an hf.Ledger")
        check_signature(model, ledger, require_signature)
        self.model, self.ledger, self._entropy = model, ledger, entropy
        self._charging = ledger.transact(partial(self._fitting, mechanism))
        self._mark = self._hashed(b"mechanism", model.run_id.encode(), self._charging.mechanism.identity.encode())
        self._charging.draw(self._certify(self._blank()), SeededEntropyForTests(0))  # refuses a mechanism that is not for such models

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_hashed"}  # it holds the owner's key

    @cached_property
    def _hashed(self) -> Callable[..., bytes]:
        return self.ledger.hasher()

    @property
    def mechanism(self) -> Mechanism | SparseVector:
        mechanism: Mechanism | SparseVector = self._charging.mechanism
        return mechanism

    def ask(self, queries: Any, analyst: str = "owner") -> Any:
        """The answer to one query, or a list of answers to many: to all of them, or where the budget is too small to none.

        (What a SparseVector will cost is not known beforehand. What it answered until the budget ended is recorded, and
        free to ask again.)
        """
        features, one = self._features(queries)
        asked = self._asked(features, analyst)
        answers = None
        while answers is None:  # again if a question that was recorded no longer is, because the database crashed meanwhile
            answers = self.ledger.transact(partial(self._enter, asked, self._draw(features, asked)))
        if len(answers) < len(asked.questions):
            raise BudgetExhausted(
                f"the budget of {self.model.dataset!r} ended, with the session, after {len(answers)} of {len(asked.questions)} queries; "
                "those are recorded: ask for them again, free of charge"
            )
        return answers[0] if one else answers

    def _draw(self, features: Tensor, asked: Asked) -> dict[str, Any]:
        """Certify and draw, once for every distinct question that this process does not know to be recorded."""
        rows: dict[str, int] = {}
        for row, question in enumerate(asked.questions):
            rows.setdefault(question, row)
        known = self.ledger.last_known(self.model.dataset)
        new = list(rows) if known is None else asked.new(known)
        if not new:
            return {}
        if known is not None and not self._charging.cost(known, asked).within(known.remaining(asked.analyst)):
            self.ledger.transact(partial(self._afford, asked))  # a refusal should not take the work of an answer
        chosen = features if len(new) == len(features) else features[[rows[question] for question in new]]
        certificate = self._certify(chosen)
        return dict(zip(new, self._charging.draw(certificate, self._entropy), strict=True))

    def _afford(self, asked: Asked, transaction: Transaction) -> None:
        self._charging.require_affordable(transaction, transaction.books.account(self.model.dataset), asked)

    def _enter(self, asked: Asked, drawn: Mapping[str, Any], transaction: Transaction) -> list[Answer] | None:
        """Charge and enter new questions; return the answers as far as the budget goes, or None if a draw is missing."""
        account = transaction.books.account(self.model.dataset)
        if not drawn.keys() >= set(asked.new(account)):
            return None
        costs = self._charging.enter(transaction, account, asked, drawn)
        shown, left = account.terms.meter.as_float, account.remaining(asked.analyst).loss
        answers = []
        for question in asked.questions:
            label = account.answers.get((asked.analyst, question))
            if label is None:
                break
            answers.append(Answer(label, shown(costs.pop(question, _FREE).loss), shown(left)))
        return answers

    def preview(self, queries: Any, analyst: str = "owner") -> Preview:
        """What `ask` would cost; nothing is answered or charged."""
        asked = self._asked(self._features(queries)[0], analyst)

        def look(transaction: Transaction) -> Preview:
            account = transaction.books.account(self.model.dataset)
            shown, left = account.terms.meter.as_float, account.remaining(analyst)
            cost, new = self._charging.cost(account, asked), len(asked.new(account))
            return Preview(shown(cost.loss), new, shown(left.loss), self._charging.each(account.terms).times_in(left))

        return self.ledger.transact(look)

    def other_models_spent(self) -> bool:
        """Return whether answers of other training runs were charged to this data set's budget."""
        dataset, own = self.model.dataset, {self.model.run_id}
        return self.ledger.transact(lambda transaction: bool(transaction.books.account(dataset).models - own))

    def _asked(self, features: Tensor, analyst: str) -> Asked:
        check_name("analyst", analyst)
        questions = tuple(self._hashed(b"question", self._mark, row.tobytes()).hex() for row in features.numpy())
        session = self._hashed(b"session", self._mark, analyst.encode()).hex()
        return Asked(analyst, self.model.run_id, session, questions)

    def _features(self, queries: Any) -> tuple[Tensor, bool]:
        """Queries as features, and whether it was a single one."""
        queries, one = as_many(queries, 1 if self.model.preprocessing is not None else len(_members(self.model)[0].record_shape))
        features = self.model.features(queries)
        if not len(features):
            raise InvalidInput("there are no queries")
        return features, one

    def _certify(self, features: Tensor) -> Certificate:
        with ONE_THREAD:
            return self.model.certify_one_by_one(features)

    def _blank(self) -> Tensor:
        first = _members(self.model)[0]
        return torch.zeros(1, *first.record_shape, dtype=first.network.dtype)

    def _fitting(self, mechanism: Mechanism | SparseVector | None, transaction: Transaction) -> Charging:
        """Return how the mechanism is charged; refuses one that the budget cannot pay for a single time."""
        account = transaction.books.account(self.model.dataset)
        terms, chosen = account.terms, charging(mechanism, account.terms)
        if self.model.neighbours is not terms.neighbours:
            raise InvalidInput(
                f"the model is certified under {self.model.neighbours.value!r}, and the budget of {account.name!r} is counted under "
                f"{terms.neighbours.value!r}; train under the same relation"
            )
        each = chosen.each(terms)
        if each.leak > terms.limit.leak:
            raise InvalidInput(
                f"the mechanism has a delta of its own, and the budget of {account.name!r} sets aside {terms.reserve:g} for that; "
                "create it with a larger reserve="
            )
        if each.loss > terms.limit.loss:
            raise InvalidInput(
                f"one charge of this mechanism, {terms.meter.as_float(each.loss):g} in {terms.meter.name}, is more than the whole budget of "
                f"{account.name!r} allows, {terms.meter.as_float(terms.limit.loss):g}; use a smaller epsilon, or one made for more queries"
            )
        return chosen


def _members(model: Certified | CertifiedEnsemble) -> tuple[Certified, ...]:
    return model.members if isinstance(model, CertifiedEnsemble) else (model,)


def as_many(queries: Any, dimensions: int) -> tuple[Any, bool]:
    """A single record (a row of numbers, or a mapping from columns to cells) as one of many; whether it was one."""
    if isinstance(queries, np.ma.MaskedArray):
        raise InvalidInput("queries: masked arrays hide missing values; fill them by a public rule")
    if isinstance(queries, Mapping):
        single = {cell is None or isinstance(cell, str) or np.isscalar(cell) for cell in queries.values()}
        if len(single) > 1:
            raise InvalidInput("queries: some columns hold one cell and others many; expected one record, or equally long columns")
        return ({name: [cell] for name, cell in queries.items()}, True) if True in single else (queries, False)
    if isinstance(queries, Tensor):
        return (queries[None], True) if queries.dim() == dimensions else (queries, False)
    if isinstance(queries, np.ndarray | list | tuple):
        try:
            return (np.asarray(queries)[None], True) if np.ndim(queries) == dimensions else (queries, False)
        except (ValueError, TypeError, RuntimeError):
            pass  # whatever it is, it is refused where features are read
    return queries, False
