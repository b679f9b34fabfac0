"""The nesting lemma: the box of a neighbour at distance k - 1 lies inside the box at distance k.

Hence certified distances change by at most 1 (P1) and stable labels agree (P2).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import holdfast as hf

from .cases import CASES, Case, neighbouring_data_set

pytestmark = pytest.mark.usefixtures("no_shape_checks")

PAIRS = 7  # per case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_boxes_of_neighbours_nest(case: Case, count: Callable[..., None]) -> None:
    model = case.model(seed=1)
    queries = case.queries(seed=1)
    for seed in range(PAIRS):
        x, y, ids = case.records_from(seed=seed)
        here = case.train(model, x, y, ids)
        there = case.train(model, *neighbouring_data_set(case, here, x, y, ids, 1, seed))
        _assert_nested(there, here)
        # Under `remove`, `there` is a subset of `here`, and nesting holds only in this direction.
        if case.relation is hf.Neighbours.REMOVE:
            continue
        _assert_nested(here, there)
        one, other = here.certify(queries), there.certify(queries)
        assert int((one.distances - other.distances).abs().max()) <= 1, "P1"
        stable = (one.distances >= 1) | (other.distances >= 1)
        assert torch.equal(one.labels[stable], other.labels[stable]), "P2"
    count("nested neighbour pairs, no violation", pairs=PAIRS)


def _assert_nested(inner: hf.Certified, outer: hf.Certified) -> None:
    for k in outer.distances:
        assert outer.bounds(k).encloses(inner.bounds(k - 1)), (
            f"the neighbour's box at {k - 1} leaves the box at {k}"
        )
        assert outer.bounds(k).encloses(outer.bounds(k - 1)), (
            f"the box at {k - 1} leaves the box at {k}"
        )


def test_enough_pairs_are_planned() -> None:
    assert len(CASES) * PAIRS >= 500


def test_ties_do_not_break_the_label() -> None:
    """P1 and P2 hold at exact ties.

    In a fully clipped single step, sums of +-clip tie exactly with k * clip, where careless float
    arithmetic would break them.
    """
    case = Case(
        "ties",
        (lambda: torch.nn.Linear(4, 2),),
        records=12,
        recipe={"clip": 1e-6, "epochs": 1, "learning_rate": 1.0},
    )
    model = case.model(seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    queries = torch.cat(
        [torch.eye(4), -torch.eye(4), torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1]])]
    )
    zeros = 0
    for seed in range(60):
        x, y, ids = case.records_from(seed=seed)
        x = x.sign()
        here = case.train(model, x, y, ids)
        there = case.train(model, *neighbouring_data_set(case, here, x, y, ids, 1, seed))
        one, other = here.certify(queries), there.certify(queries)
        assert int((one.distances - other.distances).abs().max()) <= 1
        stable = (one.distances >= 1) | (other.distances >= 1)
        assert torch.equal(one.labels[stable], other.labels[stable])
        zeros += int((one.distances == 0).sum())
    assert zeros, "no query was near a tie, so this test shows nothing"
