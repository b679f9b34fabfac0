"""Gaussian noise: bounds against independent arithmetic, and the least noise is the least."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

import holdfast as hf
from holdfast.accounting.renyi import (
    RENYI_UNIT,
    Meter,
    best_release_order,
    gaussian_delta,
    gaussian_divergence,
    least_scale_for_budget,
    least_scale_for_divergence,
    release_delta,
)
from holdfast.errors import InvalidInput

UNIT = 1 << 64
EPSILONS = st.floats(0.01, 30.0)
DELTAS = st.floats(-12.0, -1.0).map(lambda power: 10.0**power)


def exact_delta(ratio: Fraction, epsilon: float) -> mp.mpf:
    """Return the delta of Gaussian noise as an integral over the region that favours one side."""
    r, e = mp.mpf(ratio.numerator) / ratio.denominator, mp.mpf(epsilon)
    # For the densities of N(r, 1) and N(0, 1), the ratio exceeds e^epsilon from here on.
    edge = e / r + r / 2

    def gap(x: mp.mpf) -> mp.mpf:
        return (mp.exp(-((x - r) ** 2) / 2) - mp.exp(e - x * x / 2)) / mp.sqrt(2 * mp.pi)

    return mp.quad(gap, [edge, edge + 2, edge + 8, edge + 40])


@settings(max_examples=40, deadline=None)
@given(st.floats(0.02, 8.0), EPSILONS)
def test_delta_is_that_of_an_independent_integral(ratio: float, epsilon: float) -> None:
    with mp.workdps(40):
        exact = exact_delta(Fraction(ratio), epsilon)
        bound = gaussian_delta(Fraction(ratio), Decimal(epsilon))
        found = mp.mpf(bound.numerator) / bound.denominator
        assert found >= exact - mp.mpf(10) ** -30
        assert found <= exact * (1 + mp.mpf(10) ** -15) + mp.mpf(10) ** -30


@settings(max_examples=40, deadline=None)
@given(EPSILONS, DELTAS, st.integers(1, 10_000))
def test_the_least_scale_keeps_the_budget_and_one_less_does_not(
    epsilon: float, delta: float, entries: int
) -> None:
    scale = least_scale_for_budget(UNIT, hf.Budget(epsilon, delta), entries)
    limit = Fraction(Decimal(repr(delta)))
    assert release_delta(UNIT, scale, entries, Decimal(epsilon)) <= limit
    # Budgets are read as decimals, which may differ from the float in the last digit.
    assert release_delta(UNIT, scale - scale // 10**9, entries, Decimal(epsilon)) > limit


@settings(max_examples=40, deadline=None)
@given(st.floats(1.01, 500.0), st.integers(1, 10**15))
def test_the_least_scale_for_a_divergence(order: float, units: int) -> None:
    limit = units * RENYI_UNIT
    scale = least_scale_for_divergence(UNIT, order, limit)
    assert gaussian_divergence(UNIT, scale, order) <= limit
    assert gaussian_divergence(UNIT, scale - 1, order) > limit


def discrete_gaussian(scale: int, reach: int) -> dict[int, mp.mpf]:
    """Return the probabilities of -reach..reach; what is missing is negligible."""
    weights = {n: mp.exp(-(mp.mpf(n) ** 2) / (2 * scale**2)) for n in range(-reach, reach + 1)}
    total = mp.fsum(weights.values())
    return {n: weight / total for n, weight in weights.items()}


@pytest.mark.parametrize("scale", [1, 2, 7])
@pytest.mark.parametrize("shift", [1, 3])
@pytest.mark.parametrize("order", [1.5, 3.0, 18.4])
def test_the_divergence_of_shifted_discrete_gaussians(scale: int, shift: int, order: float) -> None:
    with mp.workdps(60):
        reach = int(40 * scale + 40 * order * shift)
        p = discrete_gaussian(scale, reach)
        moment = mp.fsum(
            p[n] ** order * p[n - shift] ** (1 - order) for n in range(shift - reach, reach + 1)
        )
        found = mp.log(moment) / (order - 1)
        bound = gaussian_divergence(shift, scale, order)
        assert found <= mp.mpf(bound.numerator) / bound.denominator * (1 + mp.mpf(10) ** -20)


@pytest.mark.parametrize("scale", [1, 2, 3, 10, 40])
def test_a_discrete_gaussian_is_close_to_a_rounded_one(scale: int) -> None:
    """The total variation distance is at most 1 / (8 scale^2), as the theory page shows."""
    with mp.workdps(30):
        reach = 40 * scale
        discrete = discrete_gaussian(scale, reach)
        gap = mp.fsum(
            abs(p - (mp.ncdf((n + 0.5) / scale) - mp.ncdf((n - 0.5) / scale)))
            for n, p in discrete.items()
        )
        assert gap / 2 <= mp.mpf(1) / (8 * scale**2)


def test_noise_at_usual_budgets() -> None:
    """The figures of theory: a whole budget by itself, and by Rényi divergence at its order."""
    for epsilon, alone, added_up in ((10.0, 0.500, 0.530), (1.0, 3.731, 4.048)):
        budget = hf.Budget(epsilon, 1e-5)
        order = best_release_order(budget)
        limit = Meter(order).limit(budget, 0.0).loss * RENYI_UNIT
        assert least_scale_for_budget(UNIT, budget, 385) / UNIT == pytest.approx(alone, rel=1e-3)
        by_order = least_scale_for_divergence(UNIT, order, limit) / UNIT
        assert by_order == pytest.approx(added_up, rel=1e-3)


def test_a_very_large_epsilon_still_has_a_scale() -> None:
    """There the bound on the grid's effect grows with e^epsilon, and Rényi takes over."""
    budget = hf.Budget(300.0, 1e-5)
    assert 0 < least_scale_for_budget(UNIT, budget, 385) < UNIT


def test_a_budget_without_delta_is_refused() -> None:
    with pytest.raises(InvalidInput, match="needs a delta above 0"):
        best_release_order(hf.Budget(1.0))
    with pytest.raises(InvalidInput, match="too small"):
        best_release_order(hf.Budget(1e-9, 1e-12))
    with pytest.raises(InvalidInput, match="too small"):
        least_scale_for_budget(UNIT, hf.Budget(1.5124342817342751e-06, 1e-30), 3)
