"""Composition is compared with slow, exact oracles, and its inverse with the function itself."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

import holdfast as hf


def exact_delta(epsilon: float, queries: int, total: float, query_delta: float = 0.0) -> mpf:
    """Return the smallest delta of `queries` leaky randomised responses at a total epsilon.

    It is a sum over the binomial distribution (Kairouz, Oh, Viswanath).
    """
    mp.prec = 300
    p = 1 / (1 + mp.exp(-mpf(epsilon)))
    here, there, ways = p**queries, (1 - p) ** queries, mpf(1)
    excess, k = mpf(0), queries
    while k >= 0 and here > mp.exp(total) * there:
        excess += ways * (here - mp.exp(total) * there)
        ways, here, there = ways * k / (queries - k + 1), here * (1 - p) / p, there * p / (1 - p)
        k -= 1
    return 1 - (1 - mpf(query_delta)) ** queries * (1 - excess)


CASES = [
    (0.5, 10, 1e-3),
    (0.1, 100, 1e-5),
    (1.0, 20, 1e-6),
    (0.05, 1000, 1e-5),
    (0.003, 20_000, 1e-8),
    (0.006, 100_000, 1e-5),
]


@pytest.mark.parametrize(("epsilon", "queries", "delta"), CASES)
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_optimal_composition_is_that_of_randomised_response(
    epsilon: float, queries: int, delta: float, share: float
) -> None:
    """The optimal total is never below the exact one and within 1% of it."""
    each = share * delta / queries
    total = hf.total_epsilon(epsilon, queries, delta=delta, method="optimal", query_delta=each)
    assert exact_delta(epsilon, queries, total, each) <= delta
    assert exact_delta(epsilon, queries, 0.99 * total, each) > delta


@pytest.mark.parametrize(
    ("epsilon", "queries", "delta"),
    [
        (0.003, 10**5, 2e-11),
        (0.01, 10**4, 2e-12),
        (46.02, 10**4, 1.7e-12),
        pytest.param(1e-4, 10**6, 1e-9, marks=pytest.mark.slow),
        pytest.param(1e-4, 10**6, 2e-10, marks=pytest.mark.slow),
    ],
)
def test_extreme_compositions_are_not_below_the_exact_value(
    epsilon: float, queries: int, delta: float
) -> None:
    total = hf.total_epsilon(epsilon, queries, delta=delta, method="optimal")
    assert total == math.inf or exact_delta(epsilon, queries, total) <= delta


@pytest.mark.parametrize(("epsilon", "queries", "delta"), CASES)
def test_optimal_composition_agrees_with_another_accountant(
    epsilon: float, queries: int, delta: float
) -> None:
    """Google's dp-accounting composes the same pair of distributions by discrete transforms."""
    from dp_accounting.pld import common, privacy_loss_distribution

    single = privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(epsilon, 0.0), value_discretization_interval=epsilon
    )
    theirs = float(single.self_compose(queries).get_epsilon_for_delta(delta))
    ours = hf.total_epsilon(epsilon, queries, delta=delta, method="optimal")
    assert ours == pytest.approx(theirs, rel=1e-6)


@given(st.floats(1e-4, 3.0), st.integers(1, 3000), st.floats(1e-11, 0.1), st.floats(0.0, 0.9))
@settings(max_examples=60, deadline=None)
def test_no_composition_is_below_the_exact_value(
    epsilon: float, queries: int, delta: float, share: float
) -> None:
    each = share * delta / queries
    for method in ("basic", "advanced", "optimal"):
        total = hf.total_epsilon(epsilon, queries, delta=delta, method=method, query_delta=each)
        if total < queries * epsilon:
            assert exact_delta(epsilon, queries, total, each) <= delta, method


@given(
    st.floats(1e-3, 100.0),
    st.integers(1, 400),
    st.floats(0.01, 1.0),
    st.sampled_from([0.0, 1e-9, 1e-4]),
)
@settings(max_examples=150, deadline=None)
def test_the_binomial_tail_is_never_below_the_exact_delta(
    epsilon: float, queries: int, part: float, query_delta: float
) -> None:
    from holdfast.accounting.composition import _delta_upper_bound

    total = part * queries * epsilon
    # 1e-80 covers the rounding of the oracle, which computes with 300 bits.
    assert (
        _delta_upper_bound(epsilon, queries, total, query_delta)
        >= exact_delta(epsilon, queries, total, query_delta) - mpf(10) ** -80
    )


@pytest.mark.parametrize(
    ("epsilon", "queries", "total"),
    [(34.0, 10, 339.66), (25.0, 10, 249.999975), (7.4, 100, 739.9926)],
)
def test_the_tail_at_large_epsilons(epsilon: float, queries: int, total: float) -> None:
    from holdfast.accounting.composition import _delta_upper_bound

    truth = exact_delta(epsilon, queries, total)
    assert truth <= _delta_upper_bound(epsilon, queries, total, 0.0)


def test_advanced_composition_takes_its_spare_delta_exactly() -> None:
    each, delta = 9.385958677423489e-08, 2.815787603227047e-07
    spare = float(Fraction(delta) - 3 * Fraction(each))
    expected = math.sqrt(6 * math.log(1 / spare)) * 1e-3 + 3e-3 * math.expm1(1e-3)
    assert hf.total_epsilon(1e-3, 3, delta=delta, method="advanced", query_delta=each) >= expected


def test_optimal_composition_is_not_trusted_below_its_accuracy() -> None:
    assert hf.total_epsilon(0.01, 1000, delta=1e-13, method="optimal") == math.inf
    assert hf.total_epsilon(0.01, 1000, delta=1e-13) < 10.0


def test_optimal_composition_is_never_worse_than_basic_composition() -> None:
    """Without this, the margin of the tail made `per_query_epsilon` miss larger epsilons."""
    delta, each = 1.1433887205673638e-09, 2.8584718014184095e-10
    total = hf.total_epsilon(6.0, 2, delta=delta, method="optimal", query_delta=each)
    assert total == 12.0
    found = hf.per_query_epsilon(
        12.74596012956669, 2, delta=delta, method="optimal", query_delta=each
    )
    assert found > 6.3


def test_basic_and_advanced_are_the_papers_formulas() -> None:
    assert hf.total_epsilon(0.1, 50, method="basic") == 5.0  # exact decimals, no float error
    assert hf.total_epsilon(0.1, 3, method="basic") == 0.3
    expected = math.sqrt(2 * 1000 * math.log(1e5)) * 0.1 + 1000 * 0.1 * (math.exp(0.1) - 1)
    assert hf.total_epsilon(0.1, 1000, delta=1e-5, method="advanced") == pytest.approx(expected)
    assert hf.total_epsilon(0.1, 1000, delta=0.0, method="advanced") == math.inf
    assert hf.total_epsilon(0.1, 1000, delta=1e-5, method="advanced", query_delta=1e-6) == math.inf
    assert hf.total_epsilon(0.1, 1000, delta=1e-5, method="basic", query_delta=1e-6) == math.inf


@pytest.mark.parametrize("queries", [1, 2, 10, 1000])
@pytest.mark.parametrize("delta", [0.0, 1e-9, 1e-5])
def test_the_best_is_the_smallest(queries: int, delta: float) -> None:
    every = [
        hf.total_epsilon(0.2, queries, delta=delta, method=method)
        for method in ("basic", "advanced", "optimal")
    ]
    assert hf.total_epsilon(0.2, queries, delta=delta) == min(every)


@pytest.mark.parametrize("method", [None, "basic", "advanced", "optimal"])
@pytest.mark.parametrize(
    ("total", "queries", "delta"),
    [(10.0, 1, 1e-5), (10.0, 10, 1e-5), (10.0, 1000, 1e-5), (1.0, 100, 1e-6), (0.01, 7, 1e-5)],
)
def test_per_query_epsilon_is_the_largest_that_fits(
    method, total: float, queries: int, delta: float
) -> None:
    epsilon = hf.per_query_epsilon(total, queries, delta=delta, method=method)
    assert hf.total_epsilon(epsilon, queries, delta=delta, method=method) <= total
    assert (
        hf.total_epsilon(math.nextafter(epsilon, math.inf), queries, delta=delta, method=method)
        > total
    )


def test_per_query_epsilon_without_delta_is_the_basic_share() -> None:
    assert hf.per_query_epsilon(1.0, 10) == pytest.approx(0.1)


def test_a_delta_per_query_is_added_up() -> None:
    loose = hf.per_query_epsilon(10.0, 100, delta=1e-5)
    tight = hf.per_query_epsilon(10.0, 100, delta=1e-5, query_delta=5e-8)
    assert 0 < tight < loose
    with pytest.raises(hf.errors.InvalidInput, match="more than delta"):
        hf.per_query_epsilon(10.0, 100, delta=1e-5, query_delta=1e-6)
    # Three times the delta per query exceeds delta by one part in 10^16.
    assert (
        hf.total_epsilon(
            1e-3, 3, delta=1.738505873478977e-08, method="basic", query_delta=5.795019578263257e-09
        )
        == math.inf
    )


def test_a_large_delta_allows_a_query_epsilon_above_the_total() -> None:
    epsilon = hf.per_query_epsilon(0.01, 1, delta=0.5)
    assert 1.0 < epsilon < 1.2
    assert exact_delta(epsilon, 1, 0.01) <= 0.5


@pytest.mark.parametrize(
    ("epsilon", "queries", "options", "message"),
    [
        (0.0, 10, {}, "epsilon=0.0"),
        (0.1, 0, {}, "queries=0"),
        (0.1, 1.5, {}, "queries=1.5"),
        (0.1, 10, {"delta": 2.0}, "delta=2.0"),
        (0.1, 10, {"delta": 0.1, "method": "best"}, "method='best'"),
    ],
)
def test_senseless_settings_are_refused(
    epsilon: float, queries: int, options: dict, message: str
) -> None:
    with pytest.raises(hf.errors.InvalidInput, match=message):
        hf.total_epsilon(epsilon, queries, **options)
