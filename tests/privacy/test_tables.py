"""Every table of the package is checked row by row, as the whole numbers that are sampled."""

from __future__ import annotations

import itertools

import pytest

import holdfast as hf
from holdfast.accounting.arithmetic import SCALE
from holdfast.accounting.budget import decimal_at_most
from holdfast.mechanisms.table import Table

from .checker import check_approximate, check_renyi, neighbouring

EPSILONS = (0.001, 0.01, 0.1, 0.5, 1.0, 3.0, 10.0)
CLASSES = (2, 3, 10)
REACH = 5000


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("delta", [0.0, 1e-12, 1e-5, 0.01])
def test_stable_response(epsilon: float, classes: int, delta: float) -> None:
    table = hf.StableResponse(epsilon, delta).table(classes)
    assert (
        check_approximate(
            table.outcome,
            neighbouring(classes, REACH),
            decimal_at_most(epsilon),
            decimal_at_most(delta),
        )
        > REACH
    )


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("mechanism", [hf.mechanisms.CauchyResponse, hf.mechanisms.LaplaceResponse])
def test_the_papers_responses(epsilon: float, mechanism) -> None:
    assert (
        check_approximate(mechanism(epsilon).table().outcome, neighbouring(2, REACH), epsilon)
        > REACH
    )


BUDGETS = [
    (0.1, 1e-6, 10),
    (1.0, 1e-5, 100),
    (10.0, 1e-5, 1),
    (10.0, 1e-5, 3),
    (10.0, 1e-5, 1000),
    (10.0, 1e-5, 30_000),
]


@pytest.mark.parametrize(("epsilon", "delta", "queries"), BUDGETS)
@pytest.mark.parametrize("classes", CLASSES)
def test_budgeted_response(epsilon: float, delta: float, queries: int, classes: int) -> None:
    mechanism = hf.BudgetedResponse(hf.Budget(epsilon, delta), queries)
    guarantee = mechanism.guarantee()
    table = mechanism.table(classes)
    assert (
        check_renyi(
            table.outcome, neighbouring(classes, len(table.rows)), guarantee.order, guarantee.cost
        )
        > 0
    )
    assert table.row(10**9) == table.rows[-1]


TINY = [
    (0.01, 2),
    *(
        pytest.param(epsilon, classes, marks=pytest.mark.slow)
        for epsilon in (0.001, 0.01)
        for classes in CLASSES
    ),
]


@pytest.mark.parametrize(("epsilon", "classes"), TINY)
def test_budgeted_response_of_a_tiny_budget(epsilon: float, classes: int) -> None:
    """A tiny budget gives tables of thousands of rows, up to the longest one."""
    test_budgeted_response(epsilon, 1e-5, 1, classes)


def test_the_whole_budget_is_in_the_cost_and_no_more() -> None:
    """The cost of all queries, converted back, is the budget and no more.

    The conversion of Canonne, Kamath and Steinke is evaluated in interval arithmetic.
    """
    from mpmath import iv

    iv.prec = 300
    for epsilon, delta, queries in BUDGETS:
        guarantee = hf.BudgetedResponse(hf.Budget(epsilon, delta), queries).guarantee()
        a, spent = iv.mpf(guarantee.order), queries * iv.mpf(guarantee.cost)
        total = spent + iv.log((a - 1) / a) - (iv.log(iv.mpf(delta)) + iv.log(a)) / (a - 1)
        assert total.b <= epsilon
        assert total.a >= epsilon - queries * 2.0**-39


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_noisy_argmax_on_long_votes(epsilon: float) -> None:
    """Votes of 5,001 members for two classes are checked around the tie and at the far ends.

    Around the tie, every vote with a margin below 400 is included.
    """
    mechanism, members = hf.mechanisms.NoisyArgmax(epsilon), 5001
    ones = [*range(6), *range(2300, 2700), *range(4996, 5002)]
    rows = {n: mechanism.table((members - n, n)) for n in ones}
    pairs = [((0, n), (0, n + 1)) for n in ones if n + 1 in rows]
    assert check_approximate(lambda _, n: rows[n], pairs, epsilon) > 400


@pytest.mark.parametrize("epsilon", [0.001, 0.1, 1.0, 10.0])
@pytest.mark.parametrize(("classes", "members"), [(2, 9), (3, 5), (4, 3), (10, 1)])
def test_noisy_argmax_on_all_votes(epsilon: float, classes: int, members: int) -> None:
    mechanism = hf.mechanisms.NoisyArgmax(epsilon)
    states = [
        votes
        for votes in itertools.product(range(members + 1), repeat=classes)
        if sum(votes) == members
    ]
    rows = {votes: mechanism.table(votes) for votes in states}
    assert all(sum(row) == SCALE for row in rows.values())
    count = 0
    for votes in states:
        for loser, gainer in itertools.permutations(range(classes), 2):
            if votes[loser]:
                moved = tuple(n - (i == loser) + (i == gainer) for i, n in enumerate(votes))
                count += check_approximate(
                    lambda _, state: rows[state], [((0, votes), (0, moved))], epsilon
                )
    assert count > 2


def test_noisy_argmax_is_the_argmax_of_laplace_noise() -> None:
    """The probabilities equal those of the argmax with Laplace noise.

    They are compared with the simple formula for two classes and with the symmetry of equal votes.
    """
    import math

    for epsilon, votes in [(1.0, (3, 8)), (0.1, (50, 0)), (4.0, (2, 2))]:
        lead = (votes[1] - votes[0]) * epsilon / 2
        flip = math.exp(-abs(lead)) * (2 + abs(lead)) / 4
        wins = hf.mechanisms.NoisyArgmax(epsilon).table(votes)[1] / SCALE
        assert wins == pytest.approx(1 - flip if lead >= 0 else flip, rel=1e-8)
    assert [
        row / SCALE for row in hf.mechanisms.NoisyArgmax(2.0).table((4, 4, 4, 4))
    ] == pytest.approx([0.25] * 4)


def test_noisy_argmax_works_as_hard_on_all_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All votes take the same work, so that the time taken does not reveal them."""
    from holdfast.mechanisms import argmax

    work: dict[str, int] = {}
    for name in ("_times_one_minus_exp", "_integral"):
        original = getattr(argmax, name)

        def counted(*arguments, name=name, original=original):
            work[name] = work.get(name, 0) + 1
            return original(*arguments)

        monkeypatch.setattr(argmax, name, counted)
    done = []
    for votes in [(5, 5, 5), (6, 4, 5), (15, 0, 0), (0, 0, 15), (7, 7, 1), (1, 7, 7)]:
        work.clear()
        hf.mechanisms.NoisyArgmax(1.0).table(votes)
        done.append(dict(work))
    assert all(each == done[0] for each in done)


@pytest.mark.parametrize("votes", [(1, 4, 4), (0, 3, 5), (7, 2, 1, 0), (2, 2, 1, 5, 5)])
def test_noisy_argmax_against_a_numeric_integral(votes: tuple[int, ...]) -> None:
    import numpy as np

    epsilon, y = 0.7, np.linspace(-40, 60, 400_001)
    density = [np.exp(-abs(y - epsilon / 2 * n)) / 2 for n in votes]
    below = [np.where(y < epsilon / 2 * n, d, 1 - d) for n, d in zip(votes, density, strict=True)]
    wins = [
        np.trapezoid(d * np.prod([b for j, b in enumerate(below) if j != i], axis=0), y)
        for i, d in enumerate(density)
    ]
    assert [
        row / SCALE for row in hf.mechanisms.NoisyArgmax(epsilon).table(votes)
    ] == pytest.approx(wins, abs=1e-7)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_stable_response_has_its_closed_form(epsilon: float) -> None:
    """For two classes, row j is exp(-epsilon * j) / (1 + e^epsilon)."""
    import math

    table = hf.StableResponse(epsilon).table(2)
    for j in range(0, min(len(table.rows), int(60 / epsilon)), max(1, int(2 / epsilon))):
        assert table.rows[j] / SCALE == pytest.approx(
            math.exp(-epsilon * j) / (1 + math.exp(epsilon)), rel=1e-9
        )


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 0.0), (1.0, 1e-5), (5.0, 0.0)])
def test_no_row_can_be_smaller(epsilon: float, delta: float, classes: int) -> None:
    """The checker objects if any row is reduced by three units.

    Nothing is wasted except in the last of 128 bits, to which a delta is rounded.
    """
    from .checker import NotPrivate

    table = hf.StableResponse(epsilon, delta).table(classes)
    for j in [0, 1, 2, 5, len(table.rows) // 2]:
        if table.rows[j] > 3:
            rows = (*table.rows[:j], table.rows[j] - 3, *table.rows[j + 1 :])
            with pytest.raises(NotPrivate):
                check_approximate(
                    Table(rows, classes).outcome,
                    neighbouring(classes, len(rows)),
                    decimal_at_most(epsilon),
                    decimal_at_most(delta),
                )


def test_with_a_delta_the_answer_is_exact_from_a_finite_distance_on() -> None:
    table = hf.StableResponse(0.5, 1e-6).table(3)
    assert table.rows[-1] == 0
    assert 0 < hf.StableResponse(0.5).table(3).rows[-1] < 10


@pytest.mark.parametrize(
    "mechanism",
    [
        hf.StableResponse(0.2),
        hf.StableResponse(0.2, 1e-6),
        hf.mechanisms.CauchyResponse(0.2),
        hf.mechanisms.LaplaceResponse(0.2),
        hf.BudgetedResponse(hf.Budget(1.0, 1e-5), 9),
    ],
)
def test_a_partial_table_is_a_prefix_of_the_whole(mechanism) -> None:
    whole = mechanism.table().rows
    for reach in (0, 1, 7, 10**6):
        assert mechanism.table(2, reach).rows == whole[: reach + 1]


def test_distances_beyond_the_table_are_capped() -> None:
    table = hf.StableResponse(3.0).table(2)
    assert table.outcome(1, 10**9) == table.outcome(1, len(table.rows) - 1)
