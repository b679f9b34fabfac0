"""Outcomes: the expected accuracy of each mechanism's answers, in closed form.

No noise is drawn: probabilities are read off the mechanisms' tables. Results are NOT private.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..accounting import Budget, per_query_epsilon
from ..accounting.arithmetic import SCALE, largest_integer
from ..certificates import Certificate
from ..errors import InvalidInput
from ..mechanisms import (
    AnswerMechanism,
    BudgetedResponse,
    CauchyResponse,
    LaplaceResponse,
    NoisyArgmax,
    StableResponse,
)
from ..mechanisms.sparse_vector import MIN_DELTA, SparseVector

MOST_QUERIES = 1_000_000
"""The largest number of queries that `largest_queries` considers."""


@dataclass(frozen=True)
class Outcome:
    """The expected quality of answers. NOT private, since it is computed from certificates."""

    accuracy: float
    balanced_accuracy: float  # the mean over the classes
    truth: float  # the share of queries answered with the model's own label

    @classmethod
    def of(cls, right: Tensor, kept: Tensor, labels: Tensor) -> Outcome:
        """Average the queries' probabilities of the right answer and of the model's own label."""
        by_class = [right[labels == label].mean() for label in set(labels.tolist())]
        return cls(float(right.mean()), float(torch.stack(by_class).mean()), float(kept.mean()))


Outcomes = Callable[[Certificate, Tensor, Budget, int], Outcome]
"""Maps a certificate, the right labels, a budget and a number of queries to the expected outcome.

The expectation is over queries like those certified.
"""


def expected_outcomes(make: Callable[[Budget, int], AnswerMechanism]) -> Outcomes:
    """Return the expected outcomes of a mechanism that answers each query separately."""

    def expected(certificate: Certificate, labels: Tensor, budget: Budget, queries: int) -> Outcome:
        mechanism = make(budget, queries)
        return Outcome.of(
            mechanism.answer_probability(certificate, labels),
            mechanism.keep_probability(certificate),
            labels,
        )

    return expected


def expected_sparse_vector_outcome(
    certificate: Certificate, labels: Tensor, budget: Budget, queries: int
) -> Outcome:
    """Return the expected outcome of a session that ends after sqrt(queries) unstable verdicts.

    That number is public. Queries that the session does not answer are guessed uniformly at random.
    """
    try:
        tables = SparseVector(
            budget.epsilon,
            budget.delta,
            math.isqrt(queries),
            max(1, int(certificate.distances.max())),
        )
    except InvalidInput:  # no distance reaches the threshold
        chance = torch.full((len(labels),), 1.0 / certificate.classes, dtype=torch.float64)
        return Outcome.of(chance, torch.zeros_like(chance), labels)
    return _session(tables, certificate, labels, queries)


def _session(
    tables: SparseVector, certificate: Certificate, labels: Tensor, queries: int
) -> Outcome:
    """Return the expected outcome of a session with these tables.

    Queries are drawn at random from those certified, so given the head start each of them is
    unstable with the same probability.
    """
    from scipy.stats import binom

    kept = torch.zeros(len(certificate), dtype=torch.float64)
    distances, places = torch.unique(certificate.distances, return_inverse=True)
    for head, weight in enumerate(tables.head_start_weights):
        by_distance = torch.tensor(
            [1 - tables.unstable_probability(k, head) / SCALE for k in distances.tolist()],
            dtype=torch.float64,
        )
        stable = by_distance[places]
        unstable = float((1 - stable).mean())
        # Wald's identity: E[unstable verdicts] = E[queries asked] * P(unstable). Queries are asked
        # until the session has given its number of unstable verdicts.
        verdicts = float(binom.sf(range(tables.unstable), queries, unstable).sum())
        asked = min(1.0, verdicts / unstable / queries) if unstable > 1e-12 else 1.0
        kept += weight / SCALE * asked * stable
    guessed = (1 - kept) / certificate.classes
    return Outcome.of(torch.where(labels == certificate.labels, kept, 0.0) + guessed, kept, labels)


def largest_queries(
    expected: Outcomes, certificate: Certificate, labels: Tensor, budget: Budget, accuracy: float
) -> int:
    """Return the largest number of queries at which `accuracy` is still expected.

    The result is at most MOST_QUERIES, and 0 if one query is too many. The search is by doubling
    and bisection: it is exact if the accuracy falls with the number of queries, as it does for all
    mechanisms but SparseVector, whose public number of verdicts grows in steps.
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
    return largest_integer(holds, low, high)


def mechanisms_to_compare(
    certificate: Certificate, delta: float, paper_certificate: Certificate | None = None
) -> dict[str, Outcomes]:
    """Return the mechanisms that apply to the certificate and delta, by name.

    The paper's mechanisms use the paper's composition. `paper_certificate` holds the votes of an
    ensemble with the paper's distance, for a comparison that cannot be released.
    """
    listed: dict[str, Outcomes] = {}
    if delta > 0.0:
        listed["BudgetedResponse"] = expected_outcomes(BudgetedResponse)
    listed["StableResponse"] = expected_outcomes(make_stable)
    if delta > 0.0:
        listed["StableResponse, delta"] = expected_outcomes(make_stable_with_delta)
    if delta >= MIN_DELTA:
        listed["SparseVector"] = expected_sparse_vector_outcome
    if certificate.classes == 2:
        listed["CauchyResponse (paper)"] = expected_outcomes(make_cauchy)
        listed["LaplaceResponse (paper)"] = expected_outcomes(
            lambda budget, queries: LaplaceResponse(paper_epsilon(budget, queries))
        )
    if certificate.votes is not None:
        listed["NoisyArgmax (paper)"] = expected_outcomes(
            lambda budget, queries: NoisyArgmax(paper_epsilon(budget, queries))
        )
    if paper_certificate is not None:
        compare = expected_outcomes(make_cauchy)
        listed["Cauchy, paper's distance (not private)"] = lambda _, labels, budget, queries: (
            compare(paper_certificate, labels, budget, queries)
        )
    return listed


def make_stable(budget: Budget, queries: int) -> StableResponse:
    """Return a StableResponse with pure answers, under the best composition."""
    return StableResponse(per_query_epsilon(budget.epsilon, queries, delta=budget.delta))


def make_stable_with_delta(budget: Budget, queries: int) -> StableResponse:
    """Return a StableResponse that spends half of delta on answers and half on composition.

    A single answer gets all of delta.
    """
    if queries == 1:
        return StableResponse(budget.epsilon, budget.delta)
    each = budget.delta / (2 * queries)
    return StableResponse(
        per_query_epsilon(budget.epsilon, queries, delta=budget.delta, query_delta=each), each
    )


def make_cauchy(budget: Budget, queries: int) -> CauchyResponse:
    return CauchyResponse(paper_epsilon(budget, queries))


def paper_epsilon(budget: Budget, queries: int) -> float:
    """Return the paper's epsilon per query: the better of basic and advanced composition."""
    methods = ("basic", "advanced") if budget.delta > 0.0 else ("basic",)
    return max(
        per_query_epsilon(budget.epsilon, queries, delta=budget.delta, method=method)
        for method in methods
    )
