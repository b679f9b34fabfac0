"""The frozen front: a record's features depend on that record alone.

With a cache, a slow encoder processes each record only once.
"""

from __future__ import annotations

import stat
import warnings
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.layers import Network
from holdfast.layers.front import aligned_buffer


class Log:
    """What a layer notes. It is no container, so it is not set back after each record."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []


class Encoder(nn.Module):
    """A user-defined layer that logs the batch size, alignment and thread count of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 3)
        self.log = Log()

    def forward(self, x: Tensor) -> Tensor:
        if len(x) != 2:  # output shapes are probed with two records
            self.log.seen.append((len(x), x.data_ptr() % 64, torch.get_num_threads()))
        return torch.tanh(self.inner(x))


def _records(count: int = 150) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 5), torch.randint(0, 2, (count,))


def _model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(Encoder().requires_grad_(False), nn.Linear(3, 2))


RECIPE = hf.Recipe(batch_size=150, clip=0.1)


def test_foreign_layers_see_one_record_at_a_time_on_one_thread_at_one_alignment() -> None:
    x, _ = _records()
    network = Network.of(_model(), (5,))
    encoder = network.model[0]
    encoder.log.seen.clear()
    features = network.front(x)
    assert set(encoder.log.seen) == {(1, 0, 1)}
    assert len(encoder.log.seen) == 150
    with torch.no_grad():
        assert torch.allclose(features, torch.tanh(encoder.inner(x)), atol=1e-6)
    order = torch.randperm(150)
    assert torch.equal(network.front(x[order]), features[order])
    assert torch.equal(network.front(x[7:8]), features[7:8])


def test_the_buffer_is_aligned() -> None:
    for dtype in (torch.float32, torch.float64):
        for shape in ((1, 1), (1, 33), (1, 3, 5, 7)):
            buffer = aligned_buffer(shape, dtype)
            assert buffer.shape == shape
            assert buffer.data_ptr() % 64 == 0
            assert buffer.is_contiguous()


def test_a_front_that_returns_its_input_keeps_every_record() -> None:
    class Same(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    x, _ = _records(9)
    assert torch.equal(Network.of(nn.Sequential(Same(), nn.Linear(5, 2)), (5,)).front(x), x)


def test_known_layers_in_front_are_computed_by_our_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's products are not called, neither before nor after a foreign layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 9), nn.GELU(), nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    network = Network.of(model, (5,))
    x, _ = _records(20)
    with torch.no_grad():
        wanted = nn.Sequential(*network.model[:4])(x)

    def refuse(*_: object, **__: object) -> Tensor:
        raise AssertionError("a library product was called")

    monkeypatch.setattr(nn.functional, "linear", refuse)
    assert torch.allclose(network.front(x), wanted, atol=1e-6)


def test_nondeterministic_layers_are_refused() -> None:
    class Random(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.rand_like(x)

    with pytest.raises(hf.errors.UnsupportedModel, match="different features the second time"):
        Network.of(nn.Sequential(Random(), nn.Linear(5, 2)), (5,))


def test_hooks_on_known_frozen_layers_are_refused() -> None:
    model = nn.Sequential(nn.Linear(5, 4).requires_grad_(False), nn.Linear(4, 2))
    model[0].register_forward_hook(lambda module, inputs, output: output + 1)
    with pytest.raises(hf.errors.UnsupportedModel, match="remove hooks"):
        Network.of(model, (5,))


def test_a_record_that_overflows_in_front_moves_a_bound_by_no_more_than_any_other() -> None:
    class Log(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.log(x)

    x, y = _records()
    x = x.abs() + 0.1
    broken = torch.cat([torch.zeros(1, 5), x])  # log(0) is -infinity
    model = nn.Sequential(Log(), nn.Linear(5, 2))
    here = hf.train(model, x, y, RECIPE, max_distance=4, progress=False)
    with pytest.warns(hf.errors.HoldfastWarning, match="NOT private: 1 records overflow"):
        there = hf.train(
            model, broken, torch.cat([y[:1], y]), RECIPE, max_distance=4, progress=False
        )
    for k in (1, 2, 3, 4):
        assert here.bounds(k).encloses(there.bounds(k - 1))
        assert there.bounds(k).encloses(here.bounds(k - 1))


def test_a_slow_encoder_sees_each_record_once(tmp_path: Path) -> None:
    x, y = _records()
    cache = tmp_path / "features"
    first = hf.train(_model(), x, y, RECIPE, max_distance=2, progress=False, cache=cache)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600
    new = torch.cat([torch.randn(3, 5), x[:100], x[:1]])
    second = hf.train(
        _model(),
        new,
        torch.cat([y[:3], y[:100], y[:1]]),
        RECIPE,
        max_distance=2,
        progress=False,
        cache=cache,
    )
    encoder = second.network.model[0]
    plain = hf.train(
        _model(), new, torch.cat([y[:3], y[:100], y[:1]]), RECIPE, max_distance=2, progress=False
    )
    # The layers are checked with 4 probe records on reading and on writing the cache.
    assert len(plain.network.model[0].log.seen) - len(encoder.log.seen) == 104 - 3 - 2 * 4
    for k in (0, 2):
        assert all(
            torch.equal(second.bounds(k).lower[name], plain.bounds(k).lower[name])
            for name in plain.bounds(k).box
        )
    again = hf.train(_model(), x, y, RECIPE, max_distance=2, progress=False, cache=cache)
    assert all(
        torch.equal(first.bounds(2).lower[name], again.bounds(2).lower[name])
        for name in first.bounds(2).box
    )


def test_a_cache_of_other_layers_or_without_layers_is_refused(tmp_path: Path) -> None:
    x, y = _records()
    cache = tmp_path / "features"
    hf.train(_model(), x, y, RECIPE, max_distance=1, progress=False, cache=cache)
    other = _model()
    with torch.no_grad():
        other[0].inner.weight[0, 0] += 1e-3
    with pytest.raises(hf.errors.DamagedFile, match="made by other frozen layers"):
        hf.train(other, x, y, RECIPE, max_distance=1, progress=False, cache=cache)
    with pytest.raises(hf.errors.InvalidInput, match="no frozen layers in front"):
        hf.train(
            nn.Sequential(nn.Linear(5, 2)),
            x,
            y,
            RECIPE,
            max_distance=1,
            progress=False,
            cache=cache,
        )
    content = bytearray(cache.read_bytes())
    content[-3] ^= 1
    cache.write_bytes(bytes(content))
    with pytest.raises(hf.errors.DamagedFile, match="digest"):
        hf.train(_model(), x, y, RECIPE, max_distance=1, progress=False, cache=cache)


def test_members_of_an_ensemble_have_caches_of_their_own(tmp_path: Path) -> None:
    x, y = _records()
    hf.train_ensemble(
        lambda seed: _model(),
        x,
        y,
        RECIPE,
        members=2,
        max_distance=1,
        progress=False,
        cache=tmp_path / "features",
    )
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "features.0",
        "features.1",
    ]


class StoresOutput(nn.Module):
    """A layer that stores its output as an attribute and returns that, as many extractors do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 3)
        self.kept = torch.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.inner(x)
        torch.zeros(300, 300) @ torch.zeros(300, 300)  # gives other threads time to run
        return self.kept


def test_attributes_of_a_module_are_not_shared_between_threads() -> None:
    torch.manual_seed(0)
    network = Network.of(nn.Sequential(StoresOutput().requires_grad_(False), nn.Linear(3, 2)), (5,))
    x, _ = _records(400)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        features = network.front(x)
    finally:
        torch.set_num_threads(threads)
    with torch.no_grad():
        assert torch.allclose(features, network.model[0].inner(x), atol=1e-5)


class RescalesByLargestInput(nn.Module):
    """A layer that divides by the largest input seen so far, like an observer left switched on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.tensor(10.0))

    def forward(self, x: Tensor) -> Tensor:
        self.largest = torch.maximum(self.largest, x.abs().max())
        return x / self.largest


def test_no_record_sees_what_another_left_in_a_buffer() -> None:
    x, y = _records()
    model = nn.Sequential(RescalesByLargestInput(), nn.Linear(5, 2))
    here = hf.train(model, x, y, RECIPE, max_distance=3, progress=False)
    hostile = torch.cat([torch.full((1, 5), 1e30), x])
    there = hf.train(model, hostile, torch.cat([y[:1], y]), RECIPE, max_distance=3, progress=False)
    for k in (1, 2, 3):
        assert here.bounds(k).encloses(there.bounds(k - 1))
        assert there.bounds(k).encloses(here.bounds(k - 1))


class KeepsEverything(nn.Module):
    """A layer whose output depends on what it has kept in containers that it changes in place."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.kept: dict[str, Any] = {
            "list": [10.0],
            "dict": {"": 10.0},
            "set": {10.0},
            "deque": deque([10.0]),
            "nested": [{"inner": [10.0]}],
            "ordered": OrderedDict(a=10.0),
            "replaced": [torch.tensor(10.0)],
            "tuple": ([10.0],),
            "module": [nn.ParameterList([torch.tensor(10.0)]).requires_grad_(False)],
        }

    def forward(self, x: Tensor) -> Tensor:
        largest, kept = float(x.abs().max()), self.kept[self.kind]
        if self.kind in ("list", "deque"):
            kept.append(largest)
        elif self.kind == "set":
            kept.add(largest)
        elif self.kind == "nested":
            kept[0]["inner"].append(largest)
            kept = kept[0]["inner"]
        elif self.kind == "tuple":
            kept[0].append(largest)
            kept = kept[0]
        elif self.kind == "module":
            kept[0][0].copy_(torch.maximum(kept[0][0], x.abs().max()))
            kept = [kept[0][0]]
        elif self.kind == "replaced":
            kept[0] = torch.maximum(kept[0], x.abs().max())
        else:
            kept[str(len(kept))] = largest
        values = kept.values() if isinstance(kept, dict) else kept
        return x / max(float(value) for value in values)


@pytest.mark.parametrize(
    "kind",
    ["list", "dict", "set", "deque", "nested", "ordered", "replaced", "tuple", "module"],
)
def test_no_record_sees_what_another_left_in_a_container(kind: str) -> None:
    module = KeepsEverything(kind)
    front = Network.of(nn.Sequential(module, nn.Linear(5, 2)), (5,)).front
    x, _ = _records()
    alone = torch.cat([front(row[None]) for row in x])
    hostile = torch.cat([torch.full((1, 5), 1e30), x])
    assert torch.equal(front(hostile)[1:], alone)
    assert torch.equal(front(hostile.flip(0))[:-1].flip(0), alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "activation", [nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Softplus, lambda: nn.LeakyReLU(0.1)]
)
def test_a_record_that_overflows_in_known_frozen_layers_stops_nothing(
    activation, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    front = nn.Linear(5, 4).requires_grad_(False)
    model = nn.Sequential(front, activation(), nn.Linear(4, 2)).to(dtype)
    x, y = _records(20)
    largest = torch.finfo(dtype).max
    broken = torch.cat(
        [torch.tensor([[1.0, -1.0, 1.0, -1.0, 1.0]]).to(dtype) * largest, x.to(dtype)]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.errors.HoldfastWarning)  # overflow warnings are expected
        hf.train(model, broken, torch.cat([y[:1], y]), RECIPE, max_distance=1, progress=False)


def test_a_record_too_large_for_the_models_type_is_not_refused() -> None:
    x, y = _records(20)
    broken = torch.cat([torch.full((1, 5), 1e39, dtype=torch.float64), x.double()])
    with pytest.warns(hf.errors.HoldfastWarning, match="1 records overflow"):
        hf.train(
            nn.Sequential(nn.Linear(5, 2)),
            broken,
            torch.cat([y[:1], y]),
            RECIPE,
            max_distance=1,
            progress=False,
        )
