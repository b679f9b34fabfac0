"""Tables that are wrong in ways that have been shipped, or nearly: each must be caught by the same checker."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

import holdfast as hf
from holdfast.mechanisms.arithmetic import SCALE
from holdfast.mechanisms.table import Table

from ..checker import NotPrivate, check_approximate, neighbouring


def caught(table: Table, epsilon: float, delta: float = 0.0, reach: int = 5000) -> None:
    with pytest.raises(NotPrivate):
        check_approximate(table.outcome, neighbouring(table.classes, reach), epsilon, delta)


def closed(epsilon: float, reach: int) -> list[float]:
    return [math.exp(-epsilon * j) / (1 + math.exp(epsilon)) for j in range(reach)]


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


@pytest.mark.parametrize("bits", [53, 128])
def test_rows_rounded_one_by_one(bits: int) -> None:
    unit = SCALE >> bits
    caught(Table(tuple(math.ceil(Fraction(q) * 2**bits) * unit for q in closed(0.1, 1500)), 2), 0.1)


def test_the_recursion_in_p_in_floats() -> None:
    epsilon = 0.1
    kept = [math.exp(epsilon) / (1 + math.exp(epsilon))]
    while len(kept) < 400:
        kept.append(min(math.exp(epsilon) * kept[-1], 1 - math.exp(-epsilon) * (1 - kept[-1])))
    caught(Table(tuple(round(Fraction(1 - p) * SCALE) for p in kept), 2), epsilon)


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
