"""Queries and records so large that numbers overflow: never certified, never silently trained on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import holdfast as hf


def _linear(inputs: int, outputs: int, weight: list[float], bias: list[float] | None = None) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias is not None)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight).view(outputs, inputs))
        if bias is not None:
            layer.bias.copy_(torch.tensor(bias))
    return layer


def _certify(model: nn.Module, records, query: list[float], recipe: hf.Recipe) -> tuple[int, int]:
    x, y = records
    certified = hf.train(model, torch.tensor(x), torch.tensor(y), recipe, max_distance=2, progress=False)
    certificate = certified.certify(torch.tensor([query]))
    return int(certificate.labels), int(certificate.distances)


_BINARY = hf.Recipe(epochs=1, learning_rate=1.0, clip=0.2, batch_size=1, loss="binary_cross_entropy")
_ZEROS = ([[0.0]] * 10, [1] * 10)


@pytest.mark.parametrize(
    ("model", "recipe", "here", "newcomer", "query"),
    [
        (  # infinity times zero, swallowed by a minimum
            lambda: nn.Sequential(_linear(1, 1, [-3.0]), nn.LeakyReLU(), _linear(1, 1, [0.2], [-1.0])),
            _BINARY, _ZEROS, ([-3.0], 1), [-1.1e38],
        ),
        (  # infinity made harmless by a tanh
            lambda: nn.Sequential(_linear(1, 1, [3.0]), nn.ReLU(), _linear(1, 1, [0.1], [0.0]), nn.Tanh(), _linear(1, 1, [-0.5], [-1.0])),
            _BINARY, _ZEROS, ([2.0], 0), [1.134e38],
        ),
        (  # logits overflow, their difference does not
            lambda: nn.Sequential(_linear(2, 2, [3.0, -3.0, 1.0, -0.5])),
            hf.Recipe(epochs=1, learning_rate=0.1 / 0.03, clip=0.03, batch_size=1),
            ([[0.0, 0.0]] * 3, [0, 1, 1]), ([0.1, -0.1], 0), [1.1e38, 1.1e38],
        ),
    ],
)  # fmt: skip
def test_p1_and_p2_hold_at_the_edge_of_the_float_range(model, recipe, here, newcomer, query) -> None:
    there = ([*here[0], newcomer[0]], [*here[1], newcomer[1]])
    one, other = (_certify(model(), records, query, recipe) for records in (here, there))
    assert abs(one[1] - other[1]) <= 1
    assert one[0] == other[0] or one[1] == other[1] == 0


def test_training_stops_where_numbers_overflow() -> None:
    recipe = hf.Recipe(learning_rate=3e38, clip=100.0, batch_size=1)
    with pytest.raises(hf.Overflow, match="outgrown"):
        hf.train(nn.Sequential(nn.Linear(2, 2)), [[1.0, 2.0], [3.0, 4.0]], [0, 1], recipe, max_distance=1, progress=False)


def test_infinite_features_of_a_frozen_layer_are_not_certified() -> None:
    class Blow(nn.Module):
        def forward(self, x):
            return x * 1e30

    model = nn.Sequential(Blow(), nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 2))
    certified = hf.train(
        model, torch.randn(20, 1) * 1e-30, torch.arange(20) % 2, hf.Recipe(batch_size=20, clip=0.01), max_distance=2, progress=False
    )
    assert certified.certify(torch.tensor([[1e20]])).distances.tolist() == [0]


def test_autocast_changes_nothing() -> None:
    x, y = torch.randn(30, 4), torch.arange(30) % 2
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    recipe = hf.Recipe(batch_size=30, clip=0.1)
    plain = hf.train(model, x, y, recipe, max_distance=1, progress=False)
    with torch.autocast("cpu"):
        cast = hf.train(model, x, y, recipe, max_distance=1, progress=False)
        certificate = cast.certify(x)
    assert cast.bounds(1).encloses(plain.bounds(1))
    assert torch.equal(certificate.distances, plain.certify(x).distances)
