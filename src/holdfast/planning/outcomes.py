"""Expected accuracy of private answers, in closed form from the tables: no noise is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..accounting import Budget
from ..certificates import Certificate
from ..errors import InvalidInput
from ..mechanisms import Mechanism
from ..mechanisms.arithmetic import SCALE
from ..mechanisms.sparse_vector import SparseVectorTables

MOST_QUERIES = 1_000_000
"""The search for the largest number of queries ends here."""


@dataclass(frozen=True)
class Outcome:
    """What to expect of answers: NOT private, since it is computed from certificates."""

    accuracy: float
    balanced_accuracy: float  # the mean over the classes
    truth: float  # the share of queries answered with the model's own label

    @classmethod
    def of(cls, right: Tensor, kept: Tensor, labels: Tensor) -> Outcome:
        """From each query's probabilities of the right answer and of the model's own."""
        by_class = [right[labels == label].mean() for label in set(labels.tolist())]
        return cls(float(right.mean()), float(torch.stack(by_class).mean()), float(kept.mean()))


Outcomes = Callable[[Certificate, Tensor, Budget, int], Outcome]
"""Expected over queries like those certified, whose right answers are the labels, at a number of queries under a budget."""


def of_mechanism(make: Callable[[Budget, int], Mechanism]) -> Outcomes:
    """The outcomes of a mechanism that answers every query by itself."""

    def expected(certificate: Certificate, labels: Tensor, budget: Budget, queries: int) -> Outcome:
        mechanism = make(budget, queries)
        return Outcome.of(mechanism.answer_probability(certificate, labels), mechanism.keep_probability(certificate), labels)

    return expected


def of_sparse_vector(certificate: Certificate, labels: Tensor, budget: Budget, queries: int) -> Outcome:
    """A session that ends after sqrt(queries) unstable verdicts, a public number; what it does not answer is guessed by a fair lot."""
    try:
        tables = SparseVectorTables(budget.epsilon, budget.delta, math.isqrt(queries), max(1, int(certificate.distances.max())))
    except InvalidInput:  # a threshold that no distance reaches
        lot = torch.full((len(labels),), 1.0 / certificate.classes, dtype=torch.float64)
        return Outcome.of(lot, torch.zeros_like(lot), labels)
    return _session(tables, certificate, labels, queries)


def _session(tables: SparseVectorTables, certificate: Certificate, labels: Tensor, queries: int) -> Outcome:
    """Queries come at random from those certified, so every head start makes each unstable with one probability."""
    from scipy.stats import binom

    kept = torch.zeros(len(certificate), dtype=torch.float64)
    distances = range(int(certificate.distances.max()) + 1)
    for head, weight in enumerate(tables.heads):
        by_distance = torch.tensor([1 - tables.doubt(distance, head) / SCALE for distance in distances], dtype=torch.float64)
        stable = by_distance[certificate.distances]
        unstable = float((1 - stable).mean())
        # Wald: unstable verdicts = asks made * chance of each. The session makes asks until it has seen enough of them.
        verdicts = float(binom.sf(range(tables.unstable), queries, unstable).sum())
        asked = min(1.0, verdicts / unstable / queries) if unstable > 1e-12 else 1.0
        kept += weight / SCALE * asked * stable
    guessed = (1 - kept) / certificate.classes
    return Outcome.of(torch.where(labels == certificate.labels, kept, 0.0) + guessed, kept, labels)


def largest_queries(expected: Outcomes, certificate: Certificate, labels: Tensor, budget: Budget, accuracy: float) -> int:
    """The most queries at which the expected accuracy is still at least `accuracy`; at most MOST_QUERIES; 0 if one is too many.

    By doubling and bisection: exact where accuracy falls with the number of queries, as it does for all but SparseVector,
    whose public number of verdicts grows in steps.
    """

    def holds(queries: int) -> bool:
        return expected(certificate, labels, budget, queries).accuracy >= accuracy

    if not holds(1):
        return 0
    low, high = 1, 2
    while holds(high):
        low, high = high, min(2 * high, MOST_QUERIES)
        if low == MOST_QUERIES:
            return MOST_QUERIES
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
