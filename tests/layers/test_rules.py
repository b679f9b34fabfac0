"""Every rule of every layer and loss is sound, isotonic as executed, and equals torch on points."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from holdfast.intervals import Interval
from holdfast.layers import LAYERS, Network
from holdfast.layers.losses import LOSSES
from tests.intervals.test_interval import _contains, _inside

FLAT, IMAGE = (5,), (2, 6, 6)


def _normalised(module: nn.Module) -> nn.Module:
    module.running_mean.uniform_(-1, 1)
    module.running_var.uniform_(0.5, 2)
    return module.eval()


def _model(name: str) -> tuple[nn.Sequential, tuple[int, ...]]:
    """Return a network with the layer under test after a trainable one.

    So it sees intervals.
    """
    front, flat = nn.Linear(5, 6), nn.Linear(6, 3)
    dense = {
        "linear": [nn.Linear(6, 4, bias=False), nn.Linear(4, 3)],
        "relu": [nn.ReLU(), flat],
        "leaky": [nn.LeakyReLU(0.2), flat],
        "tanh": [nn.Tanh(), flat],
        "sigmoid": [nn.Sigmoid(), flat],
        "softplus": [nn.Softplus(), flat],
        "identity": [nn.Identity(), nn.Sequential(nn.ReLU(), flat)],
        "dropout": [nn.Dropout(0.0), flat],
        "batchnorm1d": [_normalised(nn.BatchNorm1d(6)), flat],
        "batchnorm1d plain": [_normalised(nn.BatchNorm1d(6, affine=False)), flat],
        "last is not dense": [nn.Tanh(), nn.Linear(6, 3), nn.Tanh()],
    }
    if name in dense:
        return nn.Sequential(front, *dense[name]), FLAT
    images = {
        "conv": [
            nn.Conv2d(4, 3, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(27, 3),
        ],
        "conv dilated": [
            nn.ReLU(),
            nn.Conv2d(4, 2, 2, dilation=(2, 3), padding=(1, 0), bias=False),
            nn.Flatten(),
            nn.Linear(36, 3),
        ],
        "conv grouped": [
            nn.Tanh(),
            nn.Conv2d(4, 6, (1, 3), groups=2, padding="same"),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(216, 3),
        ],
        "average": [
            nn.ReLU(),
            nn.AvgPool2d(3, stride=2, padding=1),
            nn.Flatten(),
            nn.Linear(36, 3),
        ],
        "adaptive average": [nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), nn.Linear(24, 3)],
        "batchnorm2d": [_normalised(nn.BatchNorm2d(4)), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)],
    }
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), *images[name]), IMAGE


NAMES = [
    "linear",
    "relu",
    "leaky",
    "tanh",
    "sigmoid",
    "softplus",
    "identity",
    "dropout",
    "batchnorm1d",
    "batchnorm1d plain",
    "last is not dense",
    "conv",
    "conv dilated",
    "conv grouped",
    "average",
    "adaptive average",
    "batchnorm2d",
]
dtypes = st.sampled_from([torch.float32, torch.float64])


def _box(network: Network, generator: torch.Generator, width: float) -> dict[str, Interval]:
    box = {}
    for name, value in network.parameters.items():
        below, above = (
            width * torch.rand(value.shape, generator=generator).to(value.dtype) for _ in "ab"
        )
        box[name] = Interval(value - below, value + above)
    return box


def _gradients(
    network: Network, x: torch.Tensor, labels: torch.Tensor, loss: str, box
) -> dict[str, Interval]:
    """Return the per-record gradients of all parameters with shape (records, entries)."""
    passed = network.forward(network.first_input(x), box)
    outputs = network.outputs_of(passed, box)
    outgoing = LOSSES[loss].gradient(outputs, labels)
    result = {}
    for name, gradient, finite in network.backward(passed, box, outgoing, outputs.finite):
        assert bool(finite.all())
        entries = gradient.inputs or Interval.point(torch.ones(len(x), 1, dtype=x.dtype))
        left = gradient.outgoing.map_increasing(lambda end: end[:, :, None])
        result[name] = (left * entries.map_increasing(lambda end: end[:, None, :])).map_increasing(
            lambda end: end.flatten(1)
        )
    return result


def _setting(name: str, dtype: torch.dtype, seed: int):
    torch.manual_seed(seed)
    model, shape = _model(name)
    model = model.to(dtype).eval()
    return (
        model,
        Network.of(model, shape),
        torch.randn(16, *shape, dtype=dtype),
        torch.randint(0, 3, (16,)),
    )


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    dtype=dtypes,
    loss=st.sampled_from(["cross_entropy", "squared_error"]),
)
def test_isotonic_as_executed(name, seed, dtype, loss) -> None:
    """Smaller parameter boxes give smaller intervals, without slack, for outputs and gradients."""
    _, network, x, labels = _setting(name, dtype, seed)
    generator = torch.Generator().manual_seed(seed)
    outer = _box(network, generator, 0.3)
    inner = {key: _inside(generator, interval) for key, interval in outer.items()}
    wide, narrow = (
        network.outputs_of(network.forward(network.first_input(x), box), box)
        for box in (outer, inner)
    )
    assert _contains(wide.logits, narrow.logits)
    assert _contains(wide.pairs, narrow.pairs)
    large, small = (_gradients(network, x, labels, loss, box) for box in (outer, inner))
    assert set(large) == set(network.trainable)
    assert all(_contains(large[key], small[key]) for key in large)


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
@pytest.mark.parametrize("name", NAMES)
def test_point_intervals_equal_torch(name, loss) -> None:
    """On point boxes, outputs and gradients are points and equal those of torch and autograd."""
    model, network, x, labels = _setting(name, torch.float64, 0)
    box = {key: Interval.point(value) for key, value in network.parameters.items()}
    outputs = network.outputs_of(network.forward(network.first_input(x), box), box)
    assert torch.equal(outputs.logits.lower, outputs.logits.upper)
    assert torch.allclose(outputs.logits.lower, model(x), atol=1e-10)
    gradients = _gradients(network, x, labels, loss, box)
    for record in range(3):
        model.zero_grad()
        LOSSES[loss].value(
            model(x[record : record + 1]), labels[record : record + 1]
        ).sum().backward()
        for key, interval in gradients.items():
            assert torch.equal(interval.lower, interval.upper)
            assert torch.allclose(
                interval.lower[record], model.get_parameter(key).grad.flatten(), atol=1e-9
            )


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
@pytest.mark.parametrize("name", NAMES)
def test_sound_for_sampled_models(name, loss) -> None:
    """Outputs and gradients of sampled models lie in the intervals, up to torch's own rounding."""
    model, network, x, labels = _setting(name, torch.float64, 1)
    generator = torch.Generator().manual_seed(1)
    box = _box(network, generator, 0.2)
    gradients = _gradients(network, x, labels, loss, box)
    logits = network.outputs_of(network.forward(network.first_input(x), box), box).logits
    for _ in range(5):
        with torch.no_grad():
            for key, interval in box.items():
                # 0 or 1 per entry: a corner of the box.
                share = torch.rand(interval.shape, generator=generator).round(decimals=0)
                model.get_parameter(key).copy_(
                    interval.lower + (interval.upper - interval.lower) * share
                )
        values = model(x)
        assert bool(((values >= logits.lower - 1e-9) & (values <= logits.upper + 1e-9)).all())
        for record in range(3):
            model.zero_grad()
            LOSSES[loss].value(
                model(x[record : record + 1]), labels[record : record + 1]
            ).sum().backward()
            for key, interval in gradients.items():
                gradient = model.get_parameter(key).grad.flatten()
                assert bool(
                    (
                        (gradient >= interval.lower[record] - 1e-9)
                        & (gradient <= interval.upper[record] + 1e-9)
                    ).all()
                )


@pytest.mark.parametrize("name", NAMES)
def test_a_record_does_not_depend_on_the_others(name) -> None:
    _, network, x, labels = _setting(name, torch.float32, 2)
    box = _box(network, torch.Generator().manual_seed(2), 0.2)
    order = torch.randperm(len(x))
    here, there = (
        _gradients(network, x[i], labels[i], "cross_entropy", box)
        for i in (torch.arange(len(x)), order)
    )
    for key in here:
        assert torch.equal(here[key].lower[order], there[key].lower)
        assert torch.equal(here[key].upper[order], there[key].upper)


def test_every_layer_of_the_table_is_tested() -> None:
    used = {type(module) for name in NAMES for module in _model(name)[0].modules()}
    assert set(LAYERS) <= used


def test_differences_are_tighter_than_logits() -> None:
    """Bounds on differences of logits are tighter, as they count shared activations only once."""
    _, network, x, _ = _setting("relu", torch.float64, 3)
    box = _box(network, torch.Generator().manual_seed(3), 0.2)
    outputs = network.outputs_of(network.forward(network.first_input(x), box), box)
    apart = outputs.logits.lower[:, 0] - outputs.logits.upper[:, 1]
    assert bool((outputs.pairs.lower[:, 0] > apart + 1e-6).all())


def test_the_binary_loss() -> None:
    torch.manual_seed(0)
    network = Network.of(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1)), (5,))
    x, labels = torch.randn(16, 5), torch.randint(0, 2, (16,))
    generator = torch.Generator().manual_seed(0)
    outer = _box(network, generator, 0.3)
    inner = {key: _inside(generator, interval) for key, interval in outer.items()}
    large, small = (
        _gradients(network, x, labels, "binary_cross_entropy", box) for box in (outer, inner)
    )
    assert all(_contains(large[key], small[key]) for key in large)
