"""Saved models load bit for bit as they were, and damaged files are refused."""

from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import holdfast as hf
from holdfast import files
from holdfast.files import read
from tests.models.test_certified import _Backbone

X, Y = torch.randn(60, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    front = (
        nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.BatchNorm2d(2), nn.LeakyReLU(0.3))
        .eval()
        .requires_grad_(False)
    )
    body = nn.Sequential(
        nn.Conv2d(2, 2, 3, stride=2),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.BatchNorm1d(2),
        nn.Softplus(),
    )
    return nn.Sequential(front, body, nn.Identity(), nn.Linear(2, 2)).eval()


@pytest.fixture(scope="module")
def certified() -> hf.Certified:
    recipe = hf.Recipe(epochs=2, batch_size=60, clip=0.1, momentum=0.5)
    return hf.train(
        _model(),
        X,
        Y,
        recipe,
        neighbours="replace",
        max_distance=3,
        dataset="ward-7",
        progress=False,
    )


@pytest.fixture
def path(certified, tmp_path: Path) -> Path:
    certified.save(tmp_path / "model.holdfast")
    return tmp_path / "model.holdfast"


def test_everything_comes_back(certified, path: Path) -> None:
    loaded = hf.load(path)
    assert loaded.recipe == certified.recipe
    assert loaded.neighbours is certified.neighbours
    assert loaded.dataset == "ward-7"
    assert loaded.distances == certified.distances
    assert loaded.growth == certified.growth
    for k in range(4):
        assert loaded.bounds(k).encloses(certified.bounds(k))
        assert certified.bounds(k).encloses(loaded.bounds(k))
    here, there = certified.certify(X), loaded.certify(X)
    assert torch.equal(here.labels, there.labels)
    assert torch.equal(here.distances, there.distances)
    for name, value in certified.model.state_dict().items():
        assert torch.equal(value, loaded.model.state_dict()[name])
    assert str(loaded.diagnose()) == str(certified.diagnose())


def test_saving_what_was_loaded_writes_the_same(certified, path: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.holdfast"
    hf.load(path).save(again)
    (header, tensors), (other_header, other_tensors) = (
        read(file, "holdfast certified model") for file in (path, again)
    )
    assert header == other_header
    assert set(tensors) == set(other_tensors)
    assert all(torch.equal(value, other_tensors[name]) for name, value in tensors.items())


def test_any_flipped_byte_is_noticed(path: Path) -> None:
    content = path.read_bytes()
    for place in range(0, len(content), max(1, len(content) // 150)):
        damaged = bytearray(content)
        damaged[place] ^= 0x04
        path.write_bytes(bytes(damaged))
        with pytest.raises(hf.HoldfastError):
            hf.load(path)


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_a_truncated_file_is_refused(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(hf.errors.DamagedFile):
        hf.load(path)


def _rewrite_metadata(path: Path, **changes: str) -> None:
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"].update(changes)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])


def test_another_version_is_refused_with_what_to_do(path: Path) -> None:
    _rewrite_metadata(path, format="7")
    with pytest.raises(
        hf.errors.DamagedFile,
        match=(
            "file format 7, this version of holdfast reads format 3; install the version that "
            "wrote it"
        ),
    ):
        hf.load(path)


@pytest.mark.parametrize("old", ["1", "2"])
def test_a_file_whose_certificates_may_be_wrong_is_refused_with_the_reason(
    path: Path, old: str
) -> None:
    _rewrite_metadata(path, format=old)
    with pytest.raises(
        hf.errors.DamagedFile,
        match=rf"file format {old} .* certificates may be wrong .* train again",
    ):
        hf.load(path)


def test_boxes_that_do_not_nest_are_refused(tmp_path: Path) -> None:
    """Boxes that do not nest are refused even if the file's digest is valid."""
    torch.manual_seed(0)
    certified = hf.train(
        nn.Sequential(nn.Linear(36, 2)),
        X.flatten(1),
        Y,
        hf.Recipe(batch_size=60),
        max_distance=4,
        progress=False,
    )
    ladder, path = certified.ladder, tmp_path / "model.holdfast"
    for wrong, error in (
        # Two equal boxes are allowed.
        ((*ladder[:2], dataclasses.replace(ladder[1], distance=2), *ladder[3:]), None),
        (
            (
                *ladder[:2],
                dataclasses.replace(ladder[3], distance=2),
                dataclasses.replace(ladder[2], distance=3),
                ladder[4],
            ),
            "does not enclose",
        ),
        (
            (*ladder[:4], dataclasses.replace(ladder[0], distance=4)),
            "distance 4 does not enclose that of distance 3",
        ),
        ((dataclasses.replace(ladder[1], distance=0), *ladder[1:]), "holds more than one model"),
        ((*ladder[:3], ladder[4], ladder[3]), "does not enclose"),
    ):
        dataclasses.replace(certified, ladder=wrong).save(path)
        if error is None:
            hf.load(path)
        else:
            with pytest.raises(hf.HoldfastError, match=error):
                hf.load(path)


def test_another_kind_of_file_is_refused(path: Path, tmp_path: Path) -> None:
    _rewrite_metadata(path, kind="something else")
    with pytest.raises(hf.errors.DamagedFile, match="expected a holdfast certified model"):
        hf.load(path)
    with pytest.raises(hf.errors.DamagedFile, match="no such file"):
        hf.load(tmp_path / "absent")


def test_a_foreign_prefix_is_given_again_and_checked(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 2), torch.arange(40) % 2
    backbone = _Backbone().requires_grad_(False)
    model = nn.Sequential(backbone, nn.Linear(7, 2))
    certified = hf.train(
        model, x, y, hf.Recipe(batch_size=40, clip=0.1), max_distance=2, progress=False
    )
    path = tmp_path / "model.holdfast"
    certified.save(path)
    with pytest.raises(
        hf.errors.InvalidInput, match=r"pass them as hf.load\(path, prefix=module\)"
    ):
        hf.load(path)
    loaded = hf.load(path, prefix=backbone)
    assert torch.equal(loaded.certify(x).distances, certified.certify(x).distances)
    with pytest.raises(hf.errors.InvalidInput, match="computes other features"):
        hf.load(path, prefix=_Backbone())
    with pytest.raises(hf.errors.InvalidInput, match=r"expected a torch.nn.Module"):
        hf.load(path, prefix="backbone")
    trainable = _Backbone()
    trainable.load_state_dict(backbone.state_dict())
    hf.load(path, prefix=trainable)
    assert all(p.requires_grad for p in trainable.parameters()), (
        "the caller's module must not be modified"
    )


@pytest.mark.parametrize(
    "front",
    [
        lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"),
        lambda: nn.Sequential(nn.Softplus(beta=0.2), nn.Conv2d(1, 2, 1)),
        lambda: nn.Sequential(nn.Flatten(2), nn.Unflatten(2, (6, 6)), nn.Conv2d(1, 2, 1)),
    ],
)
def test_every_option_of_a_frozen_layer_comes_back(front, tmp_path: Path) -> None:
    torch.manual_seed(0)
    frozen = front().requires_grad_(False)
    model = nn.Sequential(frozen, nn.Flatten(), nn.Linear(72, 2))
    certified = hf.train(
        model, X, Y, hf.Recipe(batch_size=60, clip=0.1), max_distance=1, progress=False
    )
    path = tmp_path / "model.holdfast"
    certified.save(path)
    foreign = any(isinstance(module, nn.Unflatten) for module in model.modules())
    loaded = hf.load(path, prefix=nn.Sequential(frozen, nn.Flatten())) if foreign else hf.load(path)
    assert torch.equal(loaded.network.front(X), certified.network.front(X))
    assert torch.equal(loaded.certify(X).labels, certified.certify(X).labels)


def test_a_prefix_that_is_not_needed_is_refused(path: Path) -> None:
    with pytest.raises(hf.errors.InvalidInput, match="holds the whole model"):
        hf.load(path, prefix=nn.Identity())


def test_every_layer_can_be_written_down() -> None:
    from holdfast.layers import LAYERS
    from holdfast.layers.registry import _OPTIONS

    assert set(_OPTIONS) == set(LAYERS)


class _Hiding(nn.Module):
    """A frozen layer with a weight that affects only records larger than the public probes."""

    def __init__(self, hidden: float) -> None:
        super().__init__()
        self.hidden = nn.Parameter(torch.tensor(hidden), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.where(x.abs() > 50.0, self.hidden, 0.0)


def test_a_prefix_with_other_weights_is_refused_though_the_probes_agree(tmp_path: Path) -> None:
    x, y = torch.randn(40, 2), torch.arange(40) % 2
    model = nn.Sequential(_Hiding(1.0), nn.Linear(2, 2))
    hf.train(model, x, y, hf.Recipe(batch_size=40, clip=0.1), max_distance=1, progress=False).save(
        tmp_path / "model.holdfast"
    )
    hf.load(tmp_path / "model.holdfast", prefix=_Hiding(1.0))
    with pytest.raises(hf.errors.InvalidInput, match="other features"):
        hf.load(tmp_path / "model.holdfast", prefix=_Hiding(-9.0))


def test_a_header_that_is_nested_too_deeply_is_a_damaged_file(tmp_path: Path) -> None:
    header, path = "[" * 100_000, tmp_path / "deep.holdfast"
    about = {"kind": "model", "format": str(files.FORMAT), "header": header}
    save_file({}, path, {**about, "digest": files.digest("model", header, {})})
    with pytest.raises(hf.errors.DamagedFile, match="header is not readable"):
        files.read(path, "model")
