"""never_overflows: where it says so, no query of that size overflows in any box, so that all queries take the same work."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.intervals import Interval
from holdfast.layers import plainly

LARGEST = 1e6


def _model(seed: int, power: int, outputs: int) -> hf.Certified:
    """Trained, and then with all boxes 10^power times as large."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, outputs))
    recipe = hf.Recipe(batch_size=20, loss="binary_cross_entropy" if outputs == 1 else "cross_entropy")
    certified = hf.train(model, torch.randn(20, 3), torch.randint(0, 2, (20,)), recipe, max_distance=2, progress=False)
    ladder = tuple(replace(b, box={n: i.both(lambda end: end * 10.0**power) for n, i in b.box.items()}) for b in certified.ladder)
    return replace(certified, ladder=ladder)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), power=st.integers(-2, 20), outputs=st.integers(1, 3))
def test_nothing_overflows_where_it_is_said(seed: int, power: int, outputs: int) -> None:
    certified = _model(seed, power, outputs)
    if not certified.never_overflows(LARGEST):
        return
    queries = LARGEST * torch.cat([torch.sign(torch.randn(30, 3)), 2 * torch.rand(30, 3) - 1])
    with plainly():
        for bounds in certified.ladder:
            box = certified.network.box(bounds.box)
            certified.network.outputs_of(certified.network.forward(Interval.point(queries), box)[-1], box)  # or raises Overflow


@pytest.mark.parametrize(("power", "said"), [(-2, True), (5, True), (20, False)])
def test_both_answers_are_given(power: int, said: bool) -> None:
    assert _model(0, power, 2).never_overflows(LARGEST) is said
