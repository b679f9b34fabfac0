"""Expected accuracies of private answers, and the distances that labels need for them.

No noise is drawn: probabilities are read off the mechanisms' tables. Results are NOT private.

Exact tables are built row by row with directed rounding, which takes minutes if there are many
thousands of rows. A plan needs only a few digits. If rows change slowly, the number of rows until a
probability is reached is an integral over the logarithm of its odds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..accounting import Budget, per_query_epsilon
from ..accounting.arithmetic import SCALE, largest_integer
from ..accounting.renyi import first_row, following_row
from ..arrays import Floats, Integers
from ..certificates import Certificate
from ..checks import check_integer
from ..errors import InvalidInput
from ..heads.recipe import needed_distance
from ..mechanisms import (
    AnswerMechanism,
    BudgetedResponse,
    CauchyResponse,
    LaplaceResponse,
    NoisyArgmax,
    StableResponse,
)
from ..mechanisms.mechanism import TableMechanism
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


def distance_needed(
    mechanism: TableMechanism, *, classes: int = 2, flips: float = 0.01
) -> int | str:
    """Return the smallest distance from which the true label is missed less often than `flips`.

    If the mechanism's table ends before that distance, return a text that says so.
    """
    # Most tables are many times longer than what is read here, so they are built piece by piece.
    for reach in (8**power * 128 - 1 for power in count()):
        rows = mechanism.table(classes, reach).rows
        found = next((place for place, row in enumerate(rows) if row / SCALE < flips), None)
        if found is not None:
            return found
        if len(rows) <= reach:
            return f"beyond {len(rows) - 1:,}"
    raise AssertionError("unreachable")


def needed_distances(
    targets: Iterable[tuple[Budget, int]], *, classes: int = 2, flips: float = 0.01
) -> list[dict[str, Any]]:
    """Return the distance that each mechanism needs, per budget and number of queries.

    Only public numbers are used: no model and no records. `targets` are pairs of a total budget and
    the number of queries that it has to last for; `flips` is how often an answer may differ from
    the true label because of noise.

    Returns:
        One dictionary per target, with `epsilon`, `delta`, `queries`, and `distance` by mechanism:
        an integer, a text if the table ends before, or None if the mechanism does not apply.

    Raises:
        InvalidInput: If `flips` is not between 0 and 1.
    """
    if not 0.0 < flips < 1.0:
        raise InvalidInput(f"flips={flips!r}: expected a number between 0 and 1; try 0.01")
    rows = []
    for budget, queries in _pairs(targets):
        mechanisms = {
            "cauchy, the paper's composition": make_cauchy(budget, queries)
            if classes == 2
            else None,
            "stable response, the paper's composition": StableResponse(
                paper_epsilon(budget, queries)
            ),
            "stable response, optimal composition": make_stable(budget, queries),
            "budgeted response": BudgetedResponse(budget, queries) if budget.delta > 0.0 else None,
        }
        needed = {
            name: None
            if mechanism is None
            else distance_needed(mechanism, classes=classes, flips=flips)
            for name, mechanism in mechanisms.items()
        }
        rows.append(
            {
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "queries": queries,
                "distance": needed,
            }
        )
    return rows


def _pairs(targets: Iterable[tuple[Budget, int]]) -> list[tuple[Budget, int]]:
    try:
        pairs = [(budget, check_integer("queries", count, 1)) for budget, count in targets]
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"targets={targets!r}: expected pairs of an hf.Budget and a number of queries ({error})"
        ) from None
    if not pairs or not all(isinstance(budget, Budget) for budget, _ in pairs):
        raise InvalidInput(
            f"targets={targets!r}: expected pairs of an hf.Budget and a number of queries"
        )
    return pairs


_SLOW = 0.05  # change of the log odds per row below which rows are integrated over
_END = 18.0  # log odds beyond which noise never matters
_POINTS = 160


def approximate_accuracy(
    certificate: Certificate, right: Integers, budget: Budget, queries: int
) -> float:
    """Return about the expected accuracy of `BudgetedResponse`, within about 0.001."""
    flips = flip_probability(budget, queries, certificate.classes, certificate.distances.numpy())
    true = certificate.labels.numpy() == right
    wrong = flips / (certificate.classes - 1)
    return float(np.where(true, 1.0 - flips, wrong).mean())


def approximate_distance(budget: Budget, queries: int, classes: int, flips: float = 0.01) -> int:
    """Return about how stable a label must be for noise to change its answer this rarely."""
    if budget.delta == 0.0:
        return needed_distance(budget, queries, classes)
    places, log_odds = _curve(budget, queries, classes)
    return math.ceil(np.interp(math.log((1.0 - flips) / flips), log_odds, places) - 1e-6)


def flip_probability(budget: Budget, queries: int, classes: int, distances: Integers) -> Floats:
    """Return about how often a label at each distance is not answered."""
    places, log_odds = _curve(budget, queries, classes)
    return 1.0 / (1.0 + np.exp(np.interp(distances, places, log_odds)))


@lru_cache(maxsize=512)
def _curve(budget: Budget, queries: int, classes: int) -> tuple[Floats, Floats]:
    """Return distances, and the log odds of the true label at them."""
    mechanism = BudgetedResponse(budget, queries)
    order, cost = Decimal(mechanism.order or 0.0), Decimal(mechanism.cost)

    def step(odds: float) -> float:
        """Return the change of the log odds from one row to the next."""
        row = -math.log1p(math.exp(odds))
        return _log_odds(following_row(order, cost, row)) - odds

    start = _log_odds(first_row(order, cost, classes))
    if start >= _END or step(start) > _SLOW:
        return _rows(start, step)
    odds = start + (_END - start) * np.linspace(0.0, 1.0, _POINTS) ** 2
    rates = 1.0 / np.maximum([step(each) for each in odds], 1e-300)
    places = np.concatenate([[0.0], np.cumsum(np.diff(odds) * (rates[1:] + rates[:-1]) / 2)])
    return places, odds


def _rows(odds: float, step: Callable[[float], float]) -> tuple[Floats, Floats]:
    found = [odds]
    while found[-1] < _END:
        found.append(found[-1] + step(found[-1]))
    return np.arange(len(found), dtype=np.float64), np.array(found)


def _log_odds(log_flip: float) -> float:
    """Return the log odds of the true label, given the logarithm of its flip probability."""
    return math.log(-math.expm1(log_flip)) - log_flip
