"""Meters round limits down and prices up, and treat numbers as the decimals that users write."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import iv

import holdfast as hf
from holdfast.accounting import ApproximateGuarantee, RenyiGuarantee
from holdfast.accounting.budget import as_decimal
from holdfast.accounting.renyi import EPSILON_UNIT, RENYI_UNIT, Amount, Meter, response_divergence

from ..privacy.checker import divergence

ADD = hf.Neighbours.ADD_REMOVE
PURE = Meter(None)
epsilons = st.floats(1e-6, 100.0)


def pure(epsilon: float, delta: float = 0.0) -> ApproximateGuarantee:
    return ApproximateGuarantee(epsilon, delta, ADD)


def test_decimal_prices_add_up_exactly() -> None:
    assert PURE.price(pure(0.1)) * 10 == PURE.limit(hf.Budget(1.0), 0.0)
    assert PURE.price(pure(0.1)) * 3 == PURE.limit(hf.Budget(0.3), 0.0)
    assert PURE.price(pure(0.1)).times_in(PURE.limit(hf.Budget(0.3), 0.0)) == 3


@given(epsilons, st.integers(1, 10_000))
def test_the_planned_number_of_queries_fits_the_budget(total: float, queries: int) -> None:
    each = hf.per_query_epsilon(total, queries, method="basic")
    price, limit = PURE.price(pure(each)), PURE.limit(hf.Budget(total), 0.0)
    assert (price * queries).within(limit)
    assert limit.loss * EPSILON_UNIT <= Fraction(as_decimal(total))
    assert price.loss * EPSILON_UNIT >= Fraction(as_decimal(each))


@pytest.mark.parametrize("queries", [1, 10, 1000, 30_000])
@pytest.mark.parametrize(
    "budget", [hf.Budget(10.0, 1e-5), hf.Budget(0.3, 1e-6), hf.Budget(1.0, 1e-9)]
)
def test_the_budgeted_response_spends_it_all(queries: int, budget: hf.Budget) -> None:
    mechanism = hf.BudgetedResponse(budget, queries)
    meter = Meter(mechanism.order)
    price, limit = meter.price(mechanism.guarantee()), meter.limit(budget, 0.0)
    assert (price * queries).within(limit)
    assert not (price * (queries + 1)).within(limit) or limit.loss - price.loss * queries < queries


@given(epsilons, st.floats(1.01, 200.0))
def test_an_epsilon_in_renyi_divergence_is_that_of_randomised_response(
    epsilon: float, order: float
) -> None:
    iv.prec = 400
    keep = iv.exp(iv.mpf(str(as_decimal(epsilon))))
    exact = iv.log((keep ** iv.mpf(order) + keep ** (1 - iv.mpf(order))) / (1 + keep)) / (
        iv.mpf(order) - 1
    )
    ours = response_divergence(pure(epsilon), order)
    assert iv.mpf(str(ours)).b >= exact.a
    assert float(ours) <= min(epsilon, float(exact.b)) * (1 + 1e-12)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("order", [1.5, 3.0, 40.0])
def test_the_table_that_is_sampled_costs_no_more(epsilon: float, order: float) -> None:
    """The sampled table costs no more than the meter charges.

    The divergences of StableResponse's rows are computed in interval arithmetic.
    """
    price = Meter(order).price(hf.StableResponse(epsilon).guarantee()).loss * RENYI_UNIT
    outcome = hf.StableResponse(epsilon).table(2).outcome
    pairs = [((0, 0), (1, 0)), *(((0, j), (0, j + 1)) for j in range(30))]
    for first, second in pairs:
        for p, q in ((first, second), (second, first)):
            assert divergence(outcome(*p), outcome(*q), order).b <= float(price)


def test_a_larger_order_is_charged_its_own_cost_and_a_smaller_one_is_refused() -> None:
    assert Meter(3.0).price(RenyiGuarantee(5.0, 0.25, ADD)) == Amount(2**38)
    with pytest.raises(hf.errors.InvalidInput, match="order=3.0"):
        Meter(3.0).price(RenyiGuarantee(2.0, 0.25, ADD))
    with pytest.raises(hf.errors.InvalidInput, match="StableResponse"):
        PURE.price(RenyiGuarantee(2.0, 0.25, ADD))


def test_a_delta_of_its_own_is_counted_beside_the_loss() -> None:
    price = Meter(3.0).price(pure(0.5, 1e-7))
    assert price.leak * 10 == Meter(3.0).limit(hf.Budget(10.0, 1e-5), 1e-6).leak
    assert price.loss == Meter(3.0).price(pure(0.5)).loss
    assert (
        Meter(3.0).limit(hf.Budget(10.0, 1e-5), 1e-6).loss
        < Meter(3.0).limit(hf.Budget(10.0, 1e-5), 0.0).loss
    )
