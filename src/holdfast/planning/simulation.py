"""Simulation: the expected accuracy of private answers for every mechanism, in closed form.

No noise is drawn: probabilities are read off the mechanisms' tables. Results are NOT private.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..accounting import Budget, per_query_epsilon
from ..accounting.arithmetic import SCALE
from ..certificates import Certificate
from ..errors import InvalidInput
from ..mechanisms import BudgetedResponse, CauchyResponse, LaplaceResponse, Mechanism, NoisyArgmax, StableResponse
from ..mechanisms.sparse_vector import SMALLEST_DELTA, SparseVectorTables

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


def contenders(certificate: Certificate, delta: float, paper_certificate: Certificate | None = None) -> dict[str, Outcomes]:
    """Those that can answer such certificates under a budget with such a delta, by name; the paper's under its own composition.

    `paper_certificate`: of an ensemble, its votes with the paper's distance, for a comparison that cannot be released.
    """
    listed: dict[str, Outcomes] = {}
    if delta > 0.0:
        listed["BudgetedResponse"] = of_mechanism(BudgetedResponse)
    listed["StableResponse"] = of_mechanism(stable)
    if delta > 0.0:
        listed["StableResponse, delta"] = of_mechanism(stable_with_delta)
    if delta >= SMALLEST_DELTA:
        listed["SparseVector"] = of_sparse_vector
    if certificate.classes == 2:
        listed["CauchyResponse (paper)"] = of_mechanism(cauchy)
        listed["LaplaceResponse (paper)"] = of_mechanism(lambda budget, queries: LaplaceResponse(paper_epsilon(budget, queries)))
    if certificate.votes is not None:
        listed["NoisyArgmax (paper)"] = of_mechanism(lambda budget, queries: NoisyArgmax(paper_epsilon(budget, queries)))
    if paper_certificate is not None:
        compare = of_mechanism(cauchy)
        listed["Cauchy, paper's distance (not private)"] = lambda _, labels, budget, queries: compare(
            paper_certificate, labels, budget, queries
        )
    return listed


def stable(budget: Budget, queries: int) -> StableResponse:
    """Pure answers under the best composition."""
    return StableResponse(per_query_epsilon(budget.epsilon, queries, budget.delta))


def stable_with_delta(budget: Budget, queries: int) -> StableResponse:
    """Half of the delta goes to the answers, half to their composition; a single answer takes it all."""
    if queries == 1:
        return StableResponse(budget.epsilon, budget.delta)
    each = budget.delta / (2 * queries)
    return StableResponse(per_query_epsilon(budget.epsilon, queries, budget.delta, query_delta=each), each)


def cauchy(budget: Budget, queries: int) -> CauchyResponse:
    return CauchyResponse(paper_epsilon(budget, queries))


def paper_epsilon(budget: Budget, queries: int) -> float:
    """The epsilon per query as the paper finds it: the better of basic and advanced composition."""
    methods = ("basic", "advanced") if budget.delta > 0.0 else ("basic",)
    return max(per_query_epsilon(budget.epsilon, queries, budget.delta, method) for method in methods)


MEASURES = (("accuracy", "expected accuracy"), ("balanced_accuracy", "expected balanced accuracy"), ("truth", "share answered truly"))
_MARKERS = "osD^vPX"


def draw(
    curves: Mapping[str, Sequence[Outcome]],
    xs: Sequence[float],
    xlabel: str,
    title: str,
    plain: Outcome,
    path: Path,
) -> None:
    """One panel a measure; `plain` is what the model would reach without noise."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(MEASURES), figsize=(15, 5), layout="constrained")
    for axis, (measure, label) in zip(axes, MEASURES, strict=True):
        _panel(axis, curves, xs, measure, getattr(plain, measure))
        axis.set(xlabel=xlabel, ylabel=label, xscale="log")
        axis.grid(alpha=0.3)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"{title}\nnot private: for the owner", fontsize=11)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _panel(axis: Any, curves: Mapping[str, Sequence[Outcome]], xs: Sequence[float], measure: str, plain: float) -> None:
    for number, (name, outcomes) in enumerate(curves.items()):
        style = "--" if "paper" in name else "-"
        values = [getattr(outcome, measure) for outcome in outcomes]
        axis.plot(xs, values, style, marker=_MARKERS[number % len(_MARKERS)], markersize=4, label=name, color=f"C{number}")
    axis.axhline(plain, color="black", linewidth=1, linestyle=":", label="without noise (not private)")
