"""Attacks through user-defined frozen layers.

A record must not change the features of another record. Each of these attacks moved certified
distances of neighbouring data sets apart by tens while the front ran layer by layer over many
records, with one lock per run of layers, and with only buffers reset between two records.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.layers import Network


class Stash(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.kept = x
        return x


class Recall(nn.Module):
    """The second half of a skip connection: add what the other layer stored."""

    def __init__(self, stash: Stash) -> None:
        super().__init__()
        self.stash = stash

    def forward(self, x: Tensor) -> Tensor:
        return x + self.stash.kept


def skip_across_a_known_layer() -> nn.Sequential:
    stash = Stash()
    return nn.Sequential(stash, nn.ReLU(), Recall(stash))


class KeepsWithinACall(nn.Module):
    """A fixed projection with a skip connection that is stored on the module, as hooks do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer(
            "weight",
            torch.randn(width, width, generator=torch.Generator().manual_seed(0)) / width**0.5,
        )

    def forward(self, x: Tensor) -> Tensor:
        self.kept = x.clone()
        return torch.tanh(x @ self.weight @ self.weight @ self.weight) + self.kept


def used_twice(width: int) -> nn.Sequential:
    layer = KeepsWithinACall(width)
    return nn.Sequential(layer, nn.Softplus(), layer)


class Counting(nn.Module):
    """Add the number of large records seen so far.

    It is counted in an attribute, in a buffer and in a parameter, the latter two changed in place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.register_buffer("total", torch.zeros(1))
        self.scale = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.abs().max()) > 50.0:
            self.seen += 1
            self.total += 1.0
            with torch.no_grad():
                self.scale.add_(1.0)
        return x + self.seen + self.total + self.scale


class Tokens(nn.Module):
    """A standard embedding that renormalises its weights in place on lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4, max_norm=1.0)
        with torch.no_grad():
            self.table.weight.mul_(3.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x.abs().mul(20).long().clamp(0, 49)).sum(1)


FRONTS = {
    "a skip across a known layer": (skip_across_a_known_layer, 6),
    "a layer used twice": (lambda: used_twice(300), 300),
    "counts what it sees": (Counting, 6),
    "renormalises its weights": (Tokens, 6),
}


def network(name: str) -> tuple[Network, Tensor]:
    make, width = FRONTS[name]
    torch.manual_seed(0)
    front = make().requires_grad_(False)
    outputs = front(torch.zeros(2, width)).shape[1]
    head = nn.Linear(outputs, 1)
    nn.init.zeros_(head.weight)  # a zero head hides the features
    records = torch.randn(150, width)
    records[::50] = 99.0
    return Network.of(nn.Sequential(front, head), (width,)), records


@pytest.mark.parametrize("name", FRONTS)
def test_features_depend_on_the_record_alone(name: str) -> None:
    built, x = network(name)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        together = built.front(x)
    finally:
        torch.set_num_threads(threads)
    order = torch.randperm(len(x))
    assert torch.equal(
        together,
        torch.cat(
            [network(name)[0].front(record[None]) for record in x[:5]] + [built.front(x[5:])]
        ),
    )
    assert torch.equal(built.front(x[order]), together[order])
    assert torch.equal(built.front(torch.cat([x[:1], x]))[1:], together)


@pytest.mark.parametrize("name", FRONTS)
def test_neighbours_keep_p1_and_p2(name: str) -> None:
    make, width = FRONTS[name]
    torch.manual_seed(1)
    front = make().requires_grad_(False)
    head = nn.Linear(front(torch.zeros(2, width)).shape[1], 1)
    nn.init.zeros_(head.weight)
    model = nn.Sequential(front, head)
    x, y = torch.randn(130, width), torch.arange(130) % 2
    recipe = hf.Recipe(batch_size=128, clip=1e-3, loss="binary_cross_entropy")
    queries = torch.randn(40, width)
    here = hf.train(model, x, y, recipe, max_distance=40, progress=False)
    there = hf.train(
        model,
        torch.cat([torch.full((1, width), 99.0), x]),
        torch.cat([y[:1], y]),
        recipe,
        max_distance=40,
        progress=False,
    )
    first, second = here.certify(queries), there.certify(queries)
    assert int((first.distances - second.distances).abs().max()) <= 1
    stable = (first.distances >= 1) | (second.distances >= 1)
    assert torch.equal(first.labels[stable], second.labels[stable])
    for k in range(1, 41):
        assert here.bounds(k).encloses(there.bounds(k - 1))
        assert there.bounds(k).encloses(here.bounds(k - 1))


class Rows(nn.Module):
    """Return two rows for a large record and none for an all-zero one."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1 or 0 < float(x.abs().max()) < 5:
            return x
        return torch.cat([x, x]) if float(x.abs().max()) >= 5 else x[:0]


@pytest.mark.parametrize("value", [9.0, 0.0])
def test_every_record_gives_one_row(value: float) -> None:
    x, y = torch.randn(20, 2).clamp(-3, 3), torch.arange(20) % 2
    model = nn.Sequential(Rows(), nn.Linear(2, 2))
    recipe = hf.Recipe(batch_size=20, clip=0.1)
    hf.train(model, x, y, recipe, max_distance=1, progress=False)
    with pytest.raises(hf.errors.UnsupportedModel, match="one row per record"):
        hf.train(
            model,
            torch.cat([torch.full((1, 2), value), x]),
            torch.cat([y[:1], y]),
            recipe,
            max_distance=1,
            progress=False,
        )


def test_hooks_on_frozen_layers_are_refused_though_the_head_is_zero() -> None:
    head = nn.Linear(4, 2)
    nn.init.zeros_(head.weight)
    model = nn.Sequential(nn.Linear(5, 4).requires_grad_(False), head)
    model[0].register_forward_hook(lambda module, inputs, output: output + 1)
    with pytest.raises(hf.errors.UnsupportedModel, match="remove hooks"):
        Network.of(model, (5,))
