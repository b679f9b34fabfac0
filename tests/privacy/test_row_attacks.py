"""Attacks on the float arithmetic of training: one record must not reveal more than is charged.

Each attack builds neighbouring data sets whose certificates would differ widely if a library
computed the products or if a record were refused. tests/soundness/test_order.py and
docs/theory/floating-point.md explain why this cannot happen. Here the known attacks are run, and
what an answer reveals is computed exactly from the mechanism's table.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.intervals import Interval
from holdfast.layers import Network

CHARGED = 0.5
MECHANISM = hf.StableResponse(epsilon=CHARGED)
Data = tuple[Tensor, Tensor]


def loss(here: hf.Certificate, there: hf.Certificate) -> float:
    """Return the exact privacy loss of one answer.

    It is the largest absolute log-ratio of the probabilities of the same label.
    """
    table = MECHANISM.table(here.classes)
    worst = 0.0
    for row in range(len(here)):
        one, other = (
            table.outcome(int(c.labels[row]), int(c.distances[row])) for c in (here, there)
        )
        worst = max(
            worst, *(abs(math.log(Fraction(p, q))) for p, q in zip(one, other, strict=True))
        )
    return worst


def _in_front(record: Tensor, label: int, data: Data) -> Data:
    """Return the data set with one more record before all others, which shifts every row."""
    return torch.cat([record[None], data[0]]), torch.cat([torch.tensor([label]), data[1]])


SIDE, CLIP = 9, 2.0**-30
PLACES = (SIDE - 2) ** 2


def _convolution() -> tuple[nn.Sequential, Tensor]:
    """Return a one-channel convolution and a record whose gradient is pure rounding error.

    With a library's product, the gradient's first entry is far above or far below the clip,
    depending on the memory addresses of the operands.
    """
    model = nn.Sequential(
        nn.Conv2d(1, 1, 3, bias=False),
        nn.Flatten(),
        nn.Linear(PLACES, 1, bias=False).requires_grad_(False),
    )
    with torch.no_grad():
        model[0].weight.zero_()
        model[2].weight.copy_(torch.randn(1, PLACES, generator=torch.Generator().manual_seed(0)))
        model[2].weight[0, 0] = 1.0
    x = torch.rand(1, SIDE, SIDE, generator=torch.Generator().manual_seed(3))
    patches = nn.functional.unfold(x[None], 3)[0]
    x[0, 0, 0] = -float(patches[0, 1:].double() @ model[2].weight[0, 1:].double())
    return model, x


def test_a_convolution_with_one_output_channel() -> None:
    """The certificate does not depend on memory addresses.

    The same data once gave label 1 at distance 31 and then label 0 at distance 31, depending on the
    history of the heap.
    """
    model, x = _convolution()
    here: Data = (x.repeat(32, 1, 1, 1), torch.ones(32, dtype=torch.int64))
    there = _in_front(torch.zeros_like(x), 0, here)
    recipe = hf.Recipe(batch_size=4096, clip=CLIP, loss="binary_cross_entropy")
    query = torch.zeros(1, 1, SIDE, SIDE)
    query[0, 0, 0, 0] = 1.0
    found = []
    for data in (here, there, here, there, here):
        found.append(hf.train(model, *data, recipe, max_distance=40, progress=False).certify(query))
        _ = [torch.zeros(size) for size in range(1, 2000, 37)]  # changes the state of the heap
    assert max(loss(one, other) for one in found for other in found) <= CHARGED
    assert len({(int(c.labels), int(c.distances)) for c in found[::2]}) == 1
    assert int(found[0].distances) > 1, "nothing is certified, so this test shows nothing"


def test_the_gradient_of_a_convolution_does_not_depend_on_addresses() -> None:
    model, x = _convolution()
    layer = Network.of(model, (1, SIDE, SIDE)).layers[0]
    sums = set()
    for offset in range(0, 64, 4):
        raw = np.zeros(32 * PLACES + 64, np.float32)
        start = (-raw.ctypes.data % 64 + offset) // 4
        outgoing = torch.from_numpy(raw[start : start + 32 * PLACES]).view(
            32, 1, SIDE - 2, SIDE - 2
        )
        outgoing.copy_(
            (-0.5 * model[2].weight[0].detach() * (4096 / CLIP)).view(1, 1, SIDE - 2, SIDE - 2)
        )
        ((_, gradient),) = layer.gradients(
            Interval.point(x.repeat(32, 1, 1, 1)), {}, Interval.point(outgoing)
        )
        sums.add(float(gradient.outgoing.lower[:, 0].clamp(-4096, 4096).round().sum()))
    assert len(sums) == 1


def _front_and_record() -> tuple[nn.Sequential, Tensor]:
    """Return a model and a record for which a large frozen bias cancels the product.

    Only the rounding errors of the product remain.
    """
    front = nn.Linear(9, 2).double()
    weight = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        front.weight.zero_()
        front.weight[0] = weight
        front.bias.copy_(torch.tensor([3e4, 0.0], dtype=torch.float64))
    head = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(head.weight)
    x = 1e4 * torch.randn(9, generator=torch.Generator().manual_seed(139), dtype=torch.float64)
    x[8] -= (weight @ x + 3e4) / weight[8]
    return nn.Sequential(front.requires_grad_(False), head), x


class _Foreign(nn.Module):
    """The same layer as a user-defined module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def frozen_front_attack() -> None:
    """Run the attack on known and on foreign layers; also run in a process with other MKL code."""
    known, x = _front_and_record()
    for model in (known, nn.Sequential(_Foreign(known[0]), known[1])):
        network = Network.of(model, (9,))
        for rows in (1, 2, 3, 64, 200):
            features = network.front(x.expand(rows, 9).contiguous())
            assert torch.equal(features, features[:1].expand_as(features))
        zero = torch.zeros(9, dtype=torch.float64)
        here: Data = (
            torch.stack([x, zero] * 32),
            torch.tensor([label for i in range(32) for label in (1, i % 2)]),
        )
        there = _in_front(zero, 0, here)
        recipe = hf.Recipe(batch_size=64, clip=2.0**-40, loss="binary_cross_entropy")
        trained = [
            hf.train(model, *data, recipe, max_distance=40, progress=False)
            for data in (here, there)
        ]
        queries = torch.cat([zero[None], x[None], torch.eye(9, dtype=torch.float64)])
        assert loss(*(each.certify(queries) for each in trained)) <= CHARGED


def test_a_frozen_front_with_a_large_bias() -> None:
    frozen_front_attack()


@pytest.mark.parametrize("instructions", ["SSE4_2", "AVX2"])
def test_a_frozen_front_on_other_processors(instructions: str) -> None:
    """The attack also fails with the MKL code of other processors.

    With SSE4_2, even and odd rows of a batch differ in their last bits.
    """
    code = "from tests.privacy.test_row_attacks import frozen_front_attack; frozen_front_attack()"
    environment = {**os.environ, "MKL_ENABLE_INSTRUCTIONS": instructions}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_copies_of_a_record_on_a_rounding_boundary() -> None:
    """One record in front of 4,001 copies moves the sum of gradients by at most one clip.

    The gradient of the copies lies halfway between two units.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(33, 7), nn.Tanh(), nn.Linear(7, 1))
    x = torch.randn(33)
    nn.functional.binary_cross_entropy_with_logits(model(x[None])[:, 0], torch.ones(1)).backward()
    gradient = model[2].weight.grad
    for entry in range(7):
        # The gradient is 100.5 units, to the accuracy of autograd.
        clip = float(gradient[0, entry].abs()) * 4096 / 100.5
        recipe = hf.Recipe(batch_size=4096, clip=clip, loss="binary_cross_entropy")
        here: Data = (x.repeat(4001, 1), torch.ones(4001, dtype=torch.int64))
        trained = [
            hf.train(model, *data, recipe, max_distance=2, progress=False)
            for data in (here, _in_front(-x, 0, here))
        ]
        for k in (1, 2):
            assert trained[0].bounds(k).encloses(trained[1].bounds(k - 1))
            assert trained[1].bounds(k).encloses(trained[0].bounds(k - 1))


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize("hidden", [0, 4])
def test_a_record_that_overflows(relation: str, hidden: int) -> None:
    """A record that overflows counts like any other record.

    It can neither invalidate the certificates of others nor stop the training.
    """
    y = torch.arange(60) % 2
    x = torch.randn(60, 3) + 3.0 * (2 * y[:, None] - 1)
    torch.manual_seed(0)
    layers = (
        [nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 2)] if hidden else [nn.Linear(3, 2)]
    )
    model = nn.Sequential(*layers)
    recipe = hf.Recipe(epochs=2, batch_size=60, clip=0.05)
    queries = torch.cat([4 * torch.randn(50, 3), torch.full((1, 3), 3e38)])
    plain = hf.train(model, x, y, recipe, neighbours=relation, max_distance=8, progress=False)
    seen = set()
    for value in (3e38, -3e38, 1e30, 1e20):
        hostile = torch.tensor([value, -value, value])
        neighbour = (
            _in_front(hostile, 1, (x, y))
            if relation == "add_remove"
            else (torch.cat([hostile[None], x[1:]]), y)
        )
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", hf.errors.HoldfastWarning
            )  # overflow warnings are expected
            there = hf.train(
                model, *neighbour, recipe, neighbours=relation, max_distance=8, progress=False
            )
        for k in range(1, 9):
            assert plain.bounds(k).encloses(there.bounds(k - 1))
            assert there.bounds(k).encloses(plain.bounds(k - 1))
        one, other = plain.certify(queries), there.certify(queries)
        assert int((one.distances - other.distances).abs().max()) <= 1
        assert loss(one, other) <= CHARGED
        seen |= set(other.distances.tolist())
    assert max(seen) > 2, "nothing is certified, so this test shows nothing"
