"""Numbers that exceed the float range in training: no record is refused and boxes still nest.

The owner gets a warning.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import holdfast as hf

pytestmark = pytest.mark.usefixtures("no_shape_checks")

SIZES = st.sampled_from([1e-40, 1.0, 1e10, 1e19, 1e30, 3e38])


def _train(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, recipe: hf.Recipe, relation: str
) -> hf.Certified:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.errors.HoldfastWarning)  # overflow warnings are expected
        return hf.train(
            model,
            x,
            y,
            recipe,
            neighbours=relation,
            max_distance=4,
            ids=range(len(y)),
            progress=False,
        )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rate=st.sampled_from([1.0, 1e10, 1e25, 1e38]),
    clip=st.sampled_from([1e-3, 1.0, 1e20]),
    sizes=st.lists(SIZES, min_size=2, max_size=2),
    momentum=st.sampled_from(
        [
            {},
            {"momentum": 0.9},
            {"momentum": 3.0, "dampening": 0.5},
            {"momentum": 0.9, "nesterov": True},
        ]
    ),
    relation=st.sampled_from(["add_remove", "replace"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    loss=st.sampled_from(["cross_entropy", "squared_error"]),
)
def test_boxes_nest_whatever_overflows(
    seed, rate, clip, sizes, momentum, relation, dtype, loss
) -> None:
    """Boxes nest if a record of any size is added or exchanged, at any learning rate."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 3), nn.LeakyReLU(0.1), nn.Linear(3, 2)).to(dtype)
    x, y = torch.randn(8, 2).to(dtype), torch.arange(8) % 2
    x[0] *= sizes[0]
    largest = torch.finfo(dtype).max
    x, other = (
        x.clamp(-largest, largest),
        (torch.randn(1, 2).to(dtype) * sizes[1]).clamp(-largest, largest),
    )
    recipe = hf.Recipe(epochs=3, batch_size=8, learning_rate=rate, clip=clip, loss=loss, **momentum)
    here = _train(model, x, y, recipe, relation)
    if relation == "add_remove":
        there = _train(model, torch.cat([other, x]), torch.cat([y[:1], y]), recipe, relation)
    else:
        there = _train(model, torch.cat([other, x[1:]]), y, recipe, relation)
    for k in range(1, 5):
        for inner in (here, there):
            for outer in (here, there):
                assert outer.bounds(k).encloses(inner.bounds(k - 1))
    queries = torch.cat(
        [torch.randn(20, 2), 1e20 * torch.randn(5, 2), torch.tensor([[3e38, -3e38]])]
    ).to(dtype)
    one, two = here.certify(queries), there.certify(queries)
    assert int((one.distances - two.distances).abs().max()) <= 1
    stable = (one.distances >= 1) | (two.distances >= 1)
    assert torch.equal(one.labels[stable], two.labels[stable])


def test_bounds_that_outgrow_the_floats_certify_nothing_from_there_on() -> None:
    x = torch.tensor([[4.0, 0.0], [-4.0, 0.0]] * 10)
    y = torch.tensor([1, 0] * 10)
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    nn.init.zeros_(model[0].weight)
    limit = torch.finfo(torch.float32).max / 4
    # All gradients are clipped, so k moves scale their sum by at most 1 + k / 20.
    recipe = hf.Recipe(batch_size=20, learning_rate=limit / 1.475, clip=1.0)
    with pytest.warns(
        hf.errors.HoldfastWarning,
        match="NOT private: the bounds outgrew the float range from distance 10 on",
    ):
        certified = hf.train(model, x, y, recipe, max_distance=30, progress=False)
    certificate = certified.certify(torch.tensor([[1e-6, 0.0], [-1e-6, 0.0]]))
    assert certified.distances == tuple(range(1, 31)), (
        "the number of distances is public and must not change"
    )
    assert certificate.labels.tolist() == [1, 0]
    assert certificate.distances.tolist() == [9, 9]


def test_a_nominal_model_that_outgrows_the_floats_gives_label_and_distance_zero() -> None:
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]] * 10)
    y = torch.tensor([1, 0] * 10)
    recipe = hf.Recipe(batch_size=20, learning_rate=3e38, clip=100.0)
    with pytest.warns(hf.errors.HoldfastWarning, match="from distance 0 on"):
        certified = hf.train(
            nn.Sequential(nn.Linear(2, 2)), x, y, recipe, max_distance=3, progress=False
        )
    certificate = certified.certify(torch.tensor([[1e-30, 0.0], [-1e-30, 0.0], [1.0, 1.0]]))
    assert certificate.labels.tolist() == [0, 0, 0]
    assert certificate.distances.tolist() == [0, 0, 0]
    assert certified.predict(torch.tensor([[1.0, 0.0]])).tolist() == [0]


@pytest.mark.parametrize(
    "setting",
    [
        {"learning_rate": 1e39},
        {"min_learning_rate": 1e39},
        {"momentum": 1e39},
        {"momentum": 1e30, "nesterov": True},
    ],
)
def test_a_recipe_beyond_the_floats_is_refused(setting: dict) -> None:
    """Recipes beyond the float range are refused, which is allowed as their numbers are public.

    Infinity times a gradient of 0 would be NaN.
    """
    recipe = hf.Recipe(batch_size=20, **setting)
    with pytest.raises(hf.errors.InvalidInput, match="too large for a model in torch.float32"):
        hf.train(
            nn.Sequential(nn.Linear(2, 2)),
            torch.zeros(4, 2),
            torch.arange(4) % 2,
            recipe,
            max_distance=1,
            progress=False,
        )


def test_a_model_of_enormous_bounds_can_be_saved(tmp_path: Path) -> None:
    """A model with huge bounds can be saved.

    Widths for diagnosis that overflow must not make saving fail if it works without one record.
    """
    x, y = torch.tensor([[4.0, 0.0], [-4.0, 0.0]] * 10).double(), torch.tensor([1, 0] * 10)
    recipe = hf.Recipe(
        epochs=2, batch_size=20, learning_rate=0.9 * torch.finfo(torch.float64).max / 4, clip=1.0
    )
    model = nn.Sequential(nn.Linear(2, 2).double())
    for rows in (20, 19):
        certified = _train(model, x[:rows], y[:rows], recipe, "add_remove")
        certified.save(tmp_path / "model.holdfast")
        assert hf.load(tmp_path / "model.holdfast").certify(x).labels.shape == (20,)
