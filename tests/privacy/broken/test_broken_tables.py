"""Wrong tables of kinds that were released, or nearly: the same checker must catch each."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from mpmath import mp, mpf

import holdfast as hf
from holdfast.accounting.arithmetic import SCALE
from holdfast.mechanisms.table import Table

from ..checker import NotPrivate, check_approximate, neighbouring


def assert_caught(table: Table, epsilon: float, delta: float = 0.0, reach: int = 5000) -> None:
    with pytest.raises(NotPrivate):
        check_approximate(table.outcome, neighbouring(table.classes, reach), epsilon, delta)


def test_a_sparse_grid_used_as_distance() -> None:
    """A sparse grid of distances used as distances is caught; ranks in the grid pass.

    Neighbours may differ by one grid point, which can be many units. Grid and mechanism are the
    paper's.
    """
    grid = [0, 1, 2, 5, 10, 20, 50, 100, 200]
    for mechanism in (hf.mechanisms.CauchyResponse(1.0), hf.StableResponse(1.0)):
        table = mechanism.table()
        with pytest.raises(NotPrivate):
            check_approximate(
                lambda label, rank, t=table: t.outcome(label, grid[rank]),
                neighbouring(2, len(grid) - 1),
                1.0,
            )
        check_approximate(table.outcome, neighbouring(2, len(grid) - 1), 1.0)  # the rank passes


@pytest.mark.parametrize("gap", [5, 7, 20, 100])
def test_the_cauchy_response_tolerates_gaps_up_to_six(gap: int) -> None:
    """The true loss is epsilon / 6 per unit, so only grids with gaps above 6 violate epsilon."""
    table = hf.mechanisms.CauchyResponse(1.0).table()
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
    assert_caught(Table(rows[1:], classes), epsilon)
    assert_caught(Table((rows[0], *rows[2:]), classes), epsilon)
    assert_caught(Table((*rows[:7], 0), classes), epsilon)


def same_label(reach: int) -> list:
    """Return pairs of adjacent rows of one label."""
    return [((1, j), (1, j + 1)) for j in range(reach)]


@pytest.mark.parametrize(("bits", "loss"), [(53, 6.5), (128, 6.5)])
def test_rows_rounded_one_by_one(bits: int, loss: float) -> None:
    """Rows that are exact but rounded up one by one are caught.

    If a row is a few units, the ratio of two rows can be 2, which is a loss of 6.9 * epsilon at
    epsilon = 0.1. A chain computed on the rounded rows passes.
    """
    epsilon = 0.1
    mp.prec = 300
    exact = [mp.exp(-mpf(epsilon) * j) / (1 + mp.exp(mpf(epsilon))) for j in range(1500)]
    rows = tuple(int(mp.ceil(q * 2**bits)) << (128 - bits) for q in exact)
    with pytest.raises(NotPrivate):
        check_approximate(Table(rows, 2).outcome, same_label(1499), loss * epsilon)
    # StableResponse derives each row from the rounded one before it.
    check_approximate(hf.StableResponse(epsilon).table().outcome, same_label(1499), epsilon)


def test_the_recursion_in_p_in_floats() -> None:
    """The recursion in p in floats is caught; the recursion in q = 1 - p is accurate.

    Near p = 1 the recursion in p loses its digits: the loss exceeds 2 * epsilon at a distance of
    117.
    """
    epsilon = 0.3
    kept, missed = [math.exp(epsilon) / (1 + math.exp(epsilon))], [1 / (1 + math.exp(epsilon))]
    while len(kept) < 200:
        kept.append(min(math.exp(epsilon) * kept[-1], 1 - math.exp(-epsilon) * (1 - kept[-1])))
        missed.append(
            max(math.exp(-epsilon) * missed[-1], 1 - math.exp(epsilon) * (1 - missed[-1]))
        )
    wrong = Table(tuple(round(Fraction(1 - p) * SCALE) for p in kept), 2)
    with pytest.raises(NotPrivate):
        check_approximate(wrong.outcome, same_label(199), 2 * epsilon)
    right = Table(tuple(round(Fraction(q) * SCALE) for q in missed), 2)
    check_approximate(right.outcome, same_label(199), epsilon * (1 + 1e-9))


def test_a_binary_delta_table_for_three_classes() -> None:
    rows = hf.StableResponse(1.0, 1e-3).table(2).rows
    assert_caught(Table(rows, 3), 1.0, 1e-3)


def test_a_pure_table_for_more_classes_than_it_was_made_for() -> None:
    assert_caught(Table(hf.StableResponse(1.0).table(3).rows, 4), 1.0)


def test_a_budgeted_table_with_the_order_of_another_budget() -> None:
    from ..checker import check_renyi

    mechanism = hf.BudgetedResponse(hf.Budget(10.0, 1e-5), 10)
    table, guarantee = mechanism.table(), mechanism.guarantee()
    check_renyi(table.outcome, neighbouring(2, 5), guarantee.order, guarantee.cost)
    with pytest.raises(NotPrivate):
        check_renyi(table.outcome, neighbouring(2, 5), guarantee.order + 0.5, guarantee.cost)
    with pytest.raises(NotPrivate):
        check_renyi(
            Table((table.rows[0] - 1, *table.rows[1:]), 2).outcome,
            neighbouring(2, 1),
            guarantee.order,
            guarantee.cost,
        )
