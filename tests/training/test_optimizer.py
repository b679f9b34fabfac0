"""The optimiser equals torch.optim.SGD on point boxes and is isotonic."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.intervals import Interval
from holdfast.kernels import UNITS
from holdfast.layers.losses import LOSSES
from holdfast.networks.boxes import ParameterBounds, ReachableBoxes, advance
from tests.intervals.test_interval import _contains, _inside

SETTINGS = {
    "plain": {},
    "decaying rate": {"decay": 0.6, "min_learning_rate": 0.08},
    "weight decay": {"weight_decay": 0.1},
    "momentum": {"momentum": 0.9},
    "dampening": {"momentum": 0.9, "dampening": 0.4},
    "nesterov": {"momentum": 0.8, "nesterov": True},
    "all": {"momentum": 0.8, "nesterov": True, "weight_decay": 0.05, "decay": 0.3},
}


def _torch_run(model: nn.Module, x, y, recipe: hf.Recipe) -> dict[str, torch.Tensor]:
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        dampening=recipe.dampening,
        nesterov=recipe.nesterov,
        weight_decay=recipe.weight_decay,
    )
    for step in range(recipe.steps):
        optimiser.param_groups[0]["lr"] = recipe.learning_rate_at(step)
        optimiser.zero_grad()
        (recipe.loss_function.value(model(x), y).sum() / recipe.batch_size).backward()
        optimiser.step()
    return {name: value.detach() for name, value in model.named_parameters()}


def _largest_gradient(model: nn.Module, x, y, loss: str) -> float:
    """Return the largest gradient entry of any record at the start.

    The loss decreases, so later gradients are hardly larger.
    """
    largest = 0.0
    for record in range(len(x)):
        model.zero_grad()
        LOSSES[loss].value(model(x[record : record + 1]), y[record : record + 1]).sum().backward()
        largest = max(largest, *(float(p.grad.abs().max()) for p in model.parameters()))
    model.zero_grad()
    return largest


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error", "binary_cross_entropy"])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_nominal_run_is_torch_sgd(name: str, loss: str) -> None:
    """Without clipping, the nominal run equals torch.optim.SGD up to the rounding of gradients.

    Each record's gradient is off by at most half a unit, and hence so is their mean.
    """
    torch.manual_seed(0)
    outputs = 1 if loss == "binary_cross_entropy" else 2
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)).double()
    x, y = torch.randn(50, 4, dtype=torch.float64), torch.randint(0, 2, (50,))
    recipe = hf.Recipe(
        epochs=5,
        learning_rate=0.1,
        clip=1.2 * _largest_gradient(model, x, y, loss),
        batch_size=50,
        loss=loss,
        **SETTINGS[name],
    )
    certified = hf.train(model, x, y, recipe, max_distance=1, progress=False)
    expected = _torch_run(model, x, y, recipe)
    rounding = 0.5 * recipe.clip / UNITS
    slack = (
        rounding
        * recipe.learning_rate
        * sum(1 + recipe.momentum * step for step in range(1, recipe.steps + 1))
    )
    way = max(
        float((value - start).abs().max())
        for value, start in zip(
            expected.values(), certified.network.parameters.values(), strict=True
        )
    )
    assert slack < 0.02 * way, "the tolerance is too large to detect a wrong step"
    for key, value in certified.bounds(0).lower.items():
        assert float((value - expected[key]).abs().max()) < slack


def test_whole_unit_gradients_match_torch_sgd_exactly() -> None:
    """If all gradients are whole units, the run equals torch.optim.SGD exactly."""
    model = nn.Sequential(nn.Linear(3, 2, bias=False)).double()
    x, y = (
        torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]], dtype=torch.float64),
        torch.tensor([0, 1, 0]),
    )
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.5, 0.25, 0.0], [0.0, 0.5, 0.75]]))
    recipe = hf.Recipe(
        epochs=1, learning_rate=0.5, clip=8.0, batch_size=4, loss="squared_error", momentum=0.5
    )
    certified = hf.train(model, x, y, recipe, max_distance=1, progress=False)
    assert torch.equal(
        certified.bounds(0).lower["0.weight"], _torch_run(model, x, y, recipe)["0.weight"]
    )


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_steps_are_isotonic(name: str, dtype: torch.dtype) -> None:
    recipe = hf.Recipe(learning_rate=0.7, batch_size=1, **SETTINGS[name])
    generator = torch.Generator().manual_seed(0)

    def draw() -> Interval:
        low = torch.randn(2000, generator=generator, dtype=dtype)
        return Interval(low, low + torch.rand(2000, generator=generator, dtype=dtype))

    for step in (0, 1, 5):
        theta, buffer, gradient = draw(), draw(), draw()
        outer = advance(
            ReachableBoxes(ParameterBounds(1, {"w": theta}), {"w": buffer}),
            "w",
            gradient,
            recipe,
            step,
        )
        small = [_inside(generator, interval) for interval in (theta, buffer, gradient)]
        inner = advance(
            ReachableBoxes(ParameterBounds(1, {"w": small[0]}), {"w": small[1]}),
            "w",
            small[2],
            recipe,
            step,
        )
        assert _contains(outer[0], inner[0])
        assert outer[1] is None or _contains(outer[1], inner[1])


def test_an_empty_batch_still_takes_its_step() -> None:
    """Momentum and weight decay are applied even if a batch has no records."""
    model = nn.Sequential(nn.Linear(2, 2))
    x, y = torch.randn(2, 2), torch.tensor([0, 1])
    recipe = hf.Recipe(epochs=2, batches=8, batch_size=2, weight_decay=0.1, learning_rate=0.5)
    certified = hf.train(model, x, y, recipe, max_distance=1, progress=False)
    assert {grown.step for grown in certified.growth} == set(range(16))
