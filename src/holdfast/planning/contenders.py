"""The contenders: every mechanism, set up to answer a number of queries under a total budget."""

from __future__ import annotations

from ..accounting import Budget, per_query_epsilon
from ..certificates import Certificate
from ..mechanisms import BudgetedResponse, CauchyResponse, LaplaceResponse, NoisyArgmax, StableResponse
from ..mechanisms.sparse_vector import SMALLEST_DELTA
from .outcomes import Outcomes, of_mechanism, of_sparse_vector


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
