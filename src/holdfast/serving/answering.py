"""Answering: the road of requests through certification, mechanism and ledger, together."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ..accounting.renyi import NOTHING
from ..arrays import as_batch
from ..certificates import Certificate
from ..errors import HoldfastError, InvalidInput, LedgerUnavailable, TamperedLedger
from ..ledger import Ledger
from ..ledger.transaction import Standing, Transaction
from ..mechanisms import UNSTABLE, Mechanism, SeededEntropyForTests
from ..mechanisms.table import Entropy
from ..models import CertifiedModel
from ..workers import ONE_THREAD
from .answers import Answer
from .charging import QueryRequest
from .matching import matching_charging
from .requests import PendingRequest, PredictionRequest, hash_request

_LOG = logging.getLogger(__name__)


def _as_refusal(error: Exception) -> HoldfastError:
    """Return the error with which a request is refused that raised `error`."""
    if isinstance(error, HoldfastError):
        return error
    refusal = InvalidInput(f"queries: cannot be read ({type(error).__name__})")
    refusal.__cause__ = error
    return refusal


class Answering:
    """The part of a predictor that answers requests; `PrivatePredictor` adds what users call."""

    def __init__(
        self, model: CertifiedModel, ledger: Ledger, mechanism: Mechanism | None, entropy: Entropy
    ) -> None:
        self.model, self.ledger, self._entropy = model, ledger, entropy
        self._charging = ledger.transact(
            lambda transaction: matching_charging(
                model, mechanism, transaction.books.account(model.dataset)
            )
        )
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
        planned, counts = NOTHING, Counter[str]()
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
            for each in drawing:  # one request must not spoil the others
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
            cost = shown(costs.pop(question, NOTHING).loss)
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
            return self.model.certify_one_by_one(features)

    def _zero_query(self) -> Tensor:
        first = self.model.members[0]
        return torch.zeros(1, *first.record_shape, dtype=first.dtype)
