"""Composition against slow, exact oracles, and the inverse against the function itself."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from mpmath import mp, mpf

import holdfast as hf


def exact_delta(epsilon: float, queries: int, total: float, query_delta: float = 0.0) -> mpf:
    """The smallest delta of `queries` leaky randomised responses at a total epsilon: a sum over the binomial (Kairouz, Oh, Viswanath)."""
    mp.prec = 300
    p = 1 / (1 + mp.exp(-mpf(epsilon)))
    here, there, ways = p**queries, (1 - p) ** queries, mpf(1)
    excess, k = mpf(0), queries
    while k >= 0 and here > mp.exp(total) * there:
        excess += ways * (here - mp.exp(total) * there)
        ways, here, there = ways * k / (queries - k + 1), here * (1 - p) / p, there * p / (1 - p)
        k -= 1
    return 1 - (1 - mpf(query_delta)) ** queries * (1 - excess)


CASES = [(0.5, 10, 1e-3), (0.1, 100, 1e-5), (1.0, 20, 1e-6), (0.05, 1000, 1e-5), (0.003, 20_000, 1e-8), (0.006, 100_000, 1e-5)]


@pytest.mark.parametrize(("epsilon", "queries", "delta"), CASES)
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_optimal_composition_is_that_of_randomised_response(epsilon: float, queries: int, delta: float, share: float) -> None:
    """Never less than the truth, and within 1% of it."""
    each = share * delta / queries
    total = hf.total_epsilon(epsilon, queries, delta, "optimal", each)
    assert exact_delta(epsilon, queries, total, each) <= delta
    assert exact_delta(epsilon, queries, 0.99 * total, each) > delta


def test_optimal_composition_is_not_trusted_below_its_accuracy() -> None:
    assert hf.total_epsilon(0.01, 1000, 1e-13, "optimal") == math.inf
    assert hf.total_epsilon(0.01, 1000, 1e-13) < 10.0


def test_basic_and_advanced_are_the_papers_formulas() -> None:
    assert hf.total_epsilon(0.1, 50, method="basic") == pytest.approx(5.0)
    assert Fraction(hf.total_epsilon(0.1, 50, method="basic")) >= 50 * Fraction(0.1)
    expected = math.sqrt(2 * 1000 * math.log(1e5)) * 0.1 + 1000 * 0.1 * (math.exp(0.1) - 1)
    assert hf.total_epsilon(0.1, 1000, 1e-5, "advanced") == pytest.approx(expected)
    assert hf.total_epsilon(0.1, 1000, 0.0, "advanced") == math.inf
    assert hf.total_epsilon(0.1, 1000, 1e-5, "advanced", query_delta=1e-6) == math.inf
    assert hf.total_epsilon(0.1, 1000, 1e-5, "basic", query_delta=1e-6) == math.inf


@pytest.mark.parametrize("queries", [1, 2, 10, 1000])
@pytest.mark.parametrize("delta", [0.0, 1e-9, 1e-5])
def test_the_best_is_the_smallest(queries: int, delta: float) -> None:
    every = [hf.total_epsilon(0.2, queries, delta, method) for method in ("basic", "advanced", "optimal")]
    assert hf.total_epsilon(0.2, queries, delta) == min(every)


@pytest.mark.parametrize("method", [None, "basic", "advanced", "optimal"])
@pytest.mark.parametrize(
    ("total", "queries", "delta"), [(10.0, 1, 1e-5), (10.0, 10, 1e-5), (10.0, 1000, 1e-5), (1.0, 100, 1e-6), (0.01, 7, 1e-5)]
)
def test_per_query_epsilon_is_the_largest_that_fits(method, total: float, queries: int, delta: float) -> None:
    epsilon = hf.per_query_epsilon(total, queries, delta, method)
    assert hf.total_epsilon(epsilon, queries, delta, method) <= total
    assert hf.total_epsilon(math.nextafter(epsilon, math.inf), queries, delta, method) > total


def test_per_query_epsilon_without_delta_is_the_basic_share() -> None:
    assert hf.per_query_epsilon(1.0, 10) == pytest.approx(0.1)


def test_a_delta_per_query_is_added_up() -> None:
    loose = hf.per_query_epsilon(10.0, 100, 1e-5)
    tight = hf.per_query_epsilon(10.0, 100, 1e-5, query_delta=5e-8)
    assert 0 < tight < loose
    with pytest.raises(hf.InvalidInput, match="no epsilon per query fits"):
        hf.per_query_epsilon(10.0, 100, 1e-5, query_delta=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 10), "epsilon=0.0"),
        ((0.1, 0), "queries=0"),
        ((0.1, 1.5), "queries=1.5"),
        ((0.1, 10, 2.0), "delta=2.0"),
        ((0.1, 10, 0.1, "best"), "method='best'"),
    ],
)
def test_senseless_settings_are_refused(arguments, message: str) -> None:
    with pytest.raises(hf.InvalidInput, match=message):
        hf.total_epsilon(*arguments)
