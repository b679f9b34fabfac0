"""Practice: answers of the same shape as real ones, from no private model, free of charge."""

from __future__ import annotations

import hashlib
from typing import Any

from ..errors import BudgetExhausted, HoldfastError, InvalidInput, LedgerUnavailable, RateLimited
from ..serving import Answer, Preview, PrivatePredictor

REFUSALS: dict[str, HoldfastError] = {
    "budget-exhausted": BudgetExhausted(
        "practice: example of a refusal because the budget is exhausted"
    ),
    "rate-limited": RateLimited("practice: this is what a rate limit looks like"),
    "ledger-unavailable": LedgerUnavailable("practice: this is what an outage looks like"),
}
"""The refusals that a client can ask for."""


class Practice:
    """Made-up answers.

    A label is a public hash of the query, so the same query gets the same label. The queries are
    checked against the public schema, as real ones are; no parameter of the model is used, and the
    budget is read only at the start. Every request finds it as large as it was then granted.
    """

    def __init__(self, predictor: PrivatePredictor) -> None:
        self._predictor = predictor
        self._each = predictor.cost_of_answer()
        self._limit = predictor.ledger.status(predictor.model.dataset).limit

    def answers(self, queries: Any) -> list[Answer]:
        """Return made-up answers, with the costs that new answers would have."""
        rows = self._rows(queries)
        if self._each * len(set(rows)) > self._limit:
            raise BudgetExhausted(f"practice: {len(set(rows))} answers are more than the budget")
        left, answers, seen = self._limit, [], set[bytes]()
        for row in rows:
            cost = 0.0 if row in seen else self._each
            seen.add(row)
            left -= cost
            digest = hashlib.sha256(row).digest()
            index = int.from_bytes(digest[:8]) % self._predictor.model.classes
            answers.append(Answer(self._predictor.label_of(index), index, cost, max(0.0, left)))
        return answers

    def preview(self, queries: Any) -> Preview:
        """Return what the queries would cost from a new budget."""
        new, fits = len(set(self._rows(queries))), int(self._limit / self._each)
        return Preview(self._each * new, new, self._limit, fits)

    def refuse(self, kind: str) -> None:
        """Raise the refusal of this name, as a real one would be raised.

        Raises:
            InvalidInput: If there is no such refusal.
        """
        if kind not in REFUSALS:
            raise InvalidInput(f"refuse={kind[:50]!r}: expected one of {', '.join(REFUSALS)}")
        raise REFUSALS[kind]

    def _rows(self, queries: Any) -> list[bytes]:
        return [row.tobytes() for row in self._predictor.features_of(queries)[0].numpy()]
