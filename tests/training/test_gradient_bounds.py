"""Bounds on the descent direction are compared with an enumeration of all neighbouring batches."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.intervals import Interval
from holdfast.kernels import UNITS, units
from holdfast.layers import Gradient
from holdfast.networks.boxes import GradientSums

RELATIONS = [relation for relation in hf.Neighbours if relation.unit == "record"]


def _bounds(relation: hf.Neighbours, low: torch.Tensor, high: torch.Tensor, k: int) -> Interval:
    sums_of_box = GradientSums({"w": torch.zeros(low.shape[1])}, relation, k, len(low))
    sums_of_box.accumulate(
        "w", Gradient(Interval(low, high)), torch.ones(len(low), dtype=torch.bool), private=True
    )
    return sums_of_box.bounds("w", k)


def _extremes(
    relation: hf.Neighbours, low: torch.Tensor, high: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the smallest and largest sums over all batches at most k moves away.

    Added records take any value up to the clip.
    """
    low, high = units(low).double(), units(high).double()
    n = len(low)
    sums_low, sums_high = [], []
    for moves in range(k + 1):
        most_removed = min(moves, n)
        for removed in range(most_removed + 1):
            if relation is hf.Neighbours.REPLACE and removed != moves:
                continue
            if relation is hf.Neighbours.REMOVE and removed != moves:
                continue
            added = {hf.Neighbours.REPLACE: removed, hf.Neighbours.REMOVE: 0}.get(
                relation, moves - removed
            )
            for gone in combinations(range(n), removed):
                stay = [i for i in range(n) if i not in gone]
                sums_low.append(low[stay].sum(0) - added * UNITS)
                sums_high.append(high[stay].sum(0) + added * UNITS)
    return torch.stack(sums_low).amin(0), torch.stack(sums_high).amax(0)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 6),
    k=st.integers(1, 4),
    scale=st.sampled_from([300.0, 3000.0, 1e5]),
)
@pytest.mark.parametrize("relation", RELATIONS)
def test_bounds_hold_and_are_tight(relation, seed, n, k, scale) -> None:
    generator = torch.Generator().manual_seed(seed)
    low = scale * torch.randn(n, 3, generator=generator)
    high = low + scale * torch.rand(n, 3, generator=generator)
    bounds = _bounds(relation, low, high, k)
    least, most = _extremes(relation, low, high, k)
    assert bool((bounds.lower <= least).all())
    assert bool((most <= bounds.upper).all())
    if relation is hf.Neighbours.REPLACE and k <= n:  # exact: the extreme uses k exchanges
        assert torch.equal(bounds.lower, least)
        assert torch.equal(bounds.upper, most)
    if relation is hf.Neighbours.REMOVE:
        assert torch.equal(bounds.lower, least)
        assert torch.equal(bounds.upper, most)


@pytest.mark.parametrize("relation", RELATIONS)
def test_one_sum_serves_all_smaller_distances(relation) -> None:
    low = 2000 * torch.randn(30, 4)
    shared = GradientSums({"w": torch.zeros(4)}, relation, 40, 30)
    shared.accumulate(
        "w", Gradient(Interval(low, low + 50)), torch.ones(30, dtype=torch.bool), private=True
    )
    for k in (40, 3, 0, 17, 29, 30, 31):
        own, found = _bounds(relation, low, low + 50, k), shared.bounds("w", k)
        assert torch.equal(own.lower, found.lower)
        assert torch.equal(own.upper, found.upper)


def test_add_remove_is_tighter_than_replace() -> None:
    low = torch.rand(20, 5) * 1000
    one, two = (
        _bounds(relation, low, low + 10, 3)
        for relation in (hf.Neighbours.ADD_REMOVE, hf.Neighbours.REPLACE)
    )
    assert bool((one.upper - one.lower < two.upper - two.lower).all())


def test_public_records_are_summed_and_never_selected() -> None:
    low = torch.full((4, 2), 100.0)
    sums_of_box = GradientSums({"w": torch.zeros(2)}, hf.Neighbours.REPLACE, 2, 4)
    sums_of_box.accumulate(
        "w", Gradient(Interval.point(low)), torch.ones(4, dtype=torch.bool), private=True
    )
    sums_of_box.accumulate(
        "w",
        Gradient(Interval.point(torch.full((3, 2), 4000.0))),
        torch.ones(3, dtype=torch.bool),
        private=False,
    )
    assert sums_of_box.bounds("w", 2).lower.tolist() == [3 * 4000.0 + 2 * 100.0 - 2 * UNITS] * 2


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6), n=st.integers(1, 6), public=st.integers(0, 2), k=st.integers(0, 7)
)
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_record_that_overflowed_counts_as_anything_within_the_clip(
    relation, seed, n, public, k
) -> None:
    """A record that overflowed has the same bounds as one that is bounded by the clip alone.

    At distance 0 it counts as 0.
    """
    generator = torch.Generator().manual_seed(seed)
    low = 3000.0 * torch.randn(n + public, 3, generator=generator)
    high = low + 1000.0
    finite = torch.rand(n + public, generator=generator) < 0.6
    limit = 0.0 if k == 0 else float(UNITS)
    written = Interval(
        torch.where(finite[:, None], low, -limit), torch.where(finite[:, None], high, limit)
    )
    everyone = torch.ones(n + public, dtype=torch.bool)
    results = []
    for interval, valid in ((Interval(low, high), finite), (written, everyone)):
        sums_of_box = GradientSums({"w": torch.zeros(3)}, relation, 7, n)
        for rows, private in ((slice(0, n), True), (slice(n, None), False)):
            sums_of_box.accumulate(
                "w",
                Gradient(interval.map_increasing(lambda end, rows=rows: end[rows])),
                valid[rows],
                private=private,
            )
        results.append(sums_of_box.bounds("w", k))
    assert torch.equal(results[0].lower, results[1].lower)
    assert torch.equal(results[0].upper, results[1].upper)
