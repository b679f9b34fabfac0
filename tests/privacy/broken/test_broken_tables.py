"""Tables that are wrong in ways that have been shipped, or nearly: each must be caught by the same checker."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from mpmath import mp, mpf

import holdfast as hf
from holdfast.accounting.arithmetic import SCALE
from holdfast.mechanisms.table import Table

from ..checker import NotPrivate, check_approximate, neighbouring


def caught(table: Table, epsilon: float, delta: float = 0.0, reach: int = 5000) -> None:
    with pytest.raises(NotPrivate):
        check_approximate(table.outcome, neighbouring(table.classes, reach), epsilon, delta)


def test_a_sparse_grid_used_as_distance() -> None:
    """Neighbours may fall from one grid point to the one before: the paper's grid, and its mechanism."""
    grid = [0, 1, 2, 5, 10, 20, 50, 100, 200]
    for mechanism in (hf.CauchyResponse(1.0), hf.StableResponse(1.0)):
        table = mechanism.table()
        with pytest.raises(NotPrivate):
            check_approximate(lambda label, rank, t=table: t.outcome(label, grid[rank]), neighbouring(2, len(grid) - 1), 1.0)
        check_approximate(table.outcome, neighbouring(2, len(grid) - 1), 1.0)  # the rank


@pytest.mark.parametrize("gap", [5, 7, 20, 100])
def test_the_cauchy_response_bears_gaps_up_to_six(gap: int) -> None:
    """Its true loss is epsilon / 6 per unit, so a grid of gaps up to 6 goes unnoticed and one beyond does not."""
    table = hf.CauchyResponse(1.0).table()
    pairs = [((1, j), (1, j + gap)) for j in range(400)]
    if gap <= 6:
        check_approximate(table.outcome, pairs, 1.0)
    else:
        with pytest.raises(NotPrivate):
            check_approximate(table.outcome, pairs, 1.0)


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("classes", [2, 3])
def test_off_by_one(epsilon: float, classes: int) -> None:
    rows = hf.StableResponse(epsilon).table(classes).rows
    caught(Table(rows[1:], classes), epsilon)
    caught(Table((rows[0], *rows[2:]), classes), epsilon)
    caught(Table((*rows[:7], 0), classes), epsilon)


def same_label(reach: int) -> list:
    """Pairs of rows of one label: what is wrong below is wrong between those."""
    return [((1, j), (1, j + 1)) for j in range(reach)]


@pytest.mark.parametrize(("bits", "loss"), [(53, 6.5), (128, 6.5)])
def test_rows_rounded_one_by_one(bits: int, loss: float) -> None:
    """Each row exact, then rounded up by itself: where a row is a few units, the ratio of two is up to 2, at epsilon = 0.1 a loss of 6.9."""
    epsilon = 0.1
    mp.prec = 300
    exact = [mp.exp(-mpf(epsilon) * j) / (1 + mp.exp(mpf(epsilon))) for j in range(1500)]
    rows = tuple(int(mp.ceil(q * 2**bits)) << (128 - bits) for q in exact)
    with pytest.raises(NotPrivate):
        check_approximate(Table(rows, 2).outcome, same_label(1499), loss * epsilon)
    check_approximate(hf.StableResponse(epsilon).table().outcome, same_label(1499), epsilon)  # the chain on rounded rows


def test_the_recursion_in_p_in_floats() -> None:
    """Near p = 1 its digits are lost: more than twice epsilon at a distance of 117; the recursion in q keeps within a hair."""
    epsilon = 0.3
    kept, missed = [math.exp(epsilon) / (1 + math.exp(epsilon))], [1 / (1 + math.exp(epsilon))]
    while len(kept) < 200:
        kept.append(min(math.exp(epsilon) * kept[-1], 1 - math.exp(-epsilon) * (1 - kept[-1])))
        missed.append(max(math.exp(-epsilon) * missed[-1], 1 - math.exp(epsilon) * (1 - missed[-1])))
    wrong = Table(tuple(round(Fraction(1 - p) * SCALE) for p in kept), 2)
    with pytest.raises(NotPrivate):
        check_approximate(wrong.outcome, same_label(199), 2 * epsilon)
    right = Table(tuple(round(Fraction(q) * SCALE) for q in missed), 2)
    check_approximate(right.outcome, same_label(199), epsilon * (1 + 1e-9))


def test_a_binary_delta_table_for_three_classes() -> None:
    rows = hf.StableResponse(1.0, 1e-3).table(2).rows
    caught(Table(rows, 3), 1.0, 1e-3)


def test_a_pure_table_for_more_classes_than_it_was_made_for() -> None:
    caught(Table(hf.StableResponse(1.0).table(3).rows, 4), 1.0)


def test_a_budgeted_table_with_the_order_of_another_budget() -> None:
    from ..checker import check_renyi

    mechanism = hf.BudgetedResponse(hf.Budget(10.0, 1e-5), 10)
    table, guarantee = mechanism.table(), mechanism.guarantee()
    check_renyi(table.outcome, neighbouring(2, 5), guarantee.order, guarantee.cost)
    with pytest.raises(NotPrivate):
        check_renyi(table.outcome, neighbouring(2, 5), guarantee.order + 0.5, guarantee.cost)
    with pytest.raises(NotPrivate):
        check_renyi(Table((table.rows[0] - 1, *table.rows[1:]), 2).outcome, neighbouring(2, 1), guarantee.order, guarantee.cost)
