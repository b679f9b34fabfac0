"""Labels and distances from scores, against brute force over all scores that moves can reach."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.heads.ball import FARTHEST
from holdfast.heads.schemes import OneVersusRest, Pairs, Softmax, stable_moves

scores = st.integers(-6, 6).map(float)


@settings(deadline=None)
@given(lead=st.floats(0, 1e6), move=st.floats(1e-6, 1e3))
def test_stable_moves_is_the_largest_number_that_leaves_a_lead(lead: float, move: float) -> None:
    k = int(stable_moves(np.array([lead]), np.array([move]))[0])
    if k < FARTHEST:
        assert k == 0 or lead - k * move > -1e-9 * lead
        assert lead - (k + 1) * move <= 1e-9 * lead


def test_leads_at_the_edges() -> None:
    leads, moves = np.array([0.0, 0.0, 1.0, 3.0, 1e300]), np.array([0.0, 1.0, 0.0, 1.0, 1e-9])
    assert stable_moves(leads, moves).tolist() == [0, 0, FARTHEST, 2, FARTHEST]


@settings(deadline=None)
@given(st.lists(scores, min_size=3, max_size=3), st.lists(scores, min_size=3, max_size=3))
def test_pairs_hold_for_any_two_data_sets_that_moves_can_separate(
    first: list[float], second: list[float]
) -> None:
    """P1 and P2, for two sets of scores that differ by less than one move per pair."""
    scheme, moves = Pairs(3), np.full((2, 3), 1.001)
    a = np.array(first)
    b = a + np.clip(np.array(second) - a, -1.0, 1.0)
    labels, distances = scheme.certify(np.stack([a, b]), moves)
    assert abs(int(distances[0]) - int(distances[1])) <= 1
    assert distances.max() == 0 or labels[0] == labels[1]


@settings(deadline=None)
@given(st.lists(scores, min_size=4, max_size=4), st.lists(scores, min_size=4, max_size=4))
def test_class_scores_hold_for_any_two_data_sets(first: list[float], second: list[float]) -> None:
    """P1 and P2, if every difference of two scores moves by less than one move."""
    a = np.array(first)
    b = a + np.clip(np.array(second) - a, -0.5, 0.5)
    for scheme in (Softmax(4), OneVersusRest(4)):
        labels, distances = scheme.certify(np.stack([a, b]), np.full((2, 1), 1.001))
        assert abs(int(distances[0]) - int(distances[1])) <= 1
        assert distances.max() == 0 or labels[0] == labels[1]


def test_a_class_must_win_all_its_pairs() -> None:
    """0 beats 1, 1 beats 2, 2 beats 0: no label is stable."""
    labels, distances = Pairs(3).certify(np.array([[-5.0, 5.0, -5.0]]), np.ones((1, 3)))
    assert distances.tolist() == [0]
    assert labels.tolist() == [0]
    labels, distances = Pairs(3).certify(np.array([[-5.0, -3.0, 9.0]]), np.ones((1, 3)))
    assert (labels.tolist(), distances.tolist()) == ([0], [2])  # the pair of 1 and 2 is not asked
