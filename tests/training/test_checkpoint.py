"""An interrupted and resumed run gives the same result as an uninterrupted one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.files import read
from holdfast.networks import loop

X, Y = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 2
RECIPE = hf.Recipe(epochs=3, batches=2, batch_size=25, clip=0.1, momentum=0.5)


def _train(checkpoint: Path | None, x=X, recipe=RECIPE, **options) -> hf.Certified:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    return hf.train(
        model, x, Y, recipe, max_distance=3, checkpoint=checkpoint, progress=False, **options
    )


class _Interrupted(Exception):
    pass


def _interrupt_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    true_step, taken = loop._step, []

    def step(*args):
        if len(taken) == steps:
            raise _Interrupted
        taken.append(1)
        return true_step(*args)

    monkeypatch.setattr(loop, "_step", step)


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_resumed_equals_uninterrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    path = tmp_path / "checkpoint"
    with monkeypatch.context() as patch:
        _interrupt_after(patch, steps)
        with pytest.raises(_Interrupted):
            _train(path)
    with monkeypatch.context() as patch:
        _interrupt_after(patch, 6 - steps)  # fails after more than the remaining steps
        resumed = _train(path)
    whole = _train(None)
    for k in range(4):
        assert resumed.bounds(k).encloses(whole.bounds(k))
        assert whole.bounds(k).encloses(resumed.bounds(k))
    assert resumed.growth == whole.growth


def test_an_interrupted_run_keeps_its_id_and_a_finished_one_taken_up_again_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted run keeps its id, and a finished run that is resumed gets a new one.

    Keeping the id of a finished run would reveal that the records are unchanged.
    """
    path = tmp_path / "checkpoint"
    with monkeypatch.context() as patch:
        _interrupt_after(patch, 3)
        with pytest.raises(_Interrupted):
            _train(path)
    begun = read(path, "holdfast training checkpoint")[0]["run_id"]
    assert _train(path).run_id == begun
    ids = {begun, *(_train(path).run_id for _ in range(3))}
    assert len(ids) == 4


def test_a_finished_run_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint"
    first = _train(path)
    _interrupt_after(monkeypatch, 0)
    assert _train(path).bounds(3).encloses(first.bounds(3))


def test_another_data_set_or_recipe_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    _train(path)
    other = X.clone()
    other[3, 1] += 1
    for options in (
        {"x": other},
        {"recipe": hf.Recipe(**{**RECIPE.as_dict(), "clip": 0.2})},
        {"neighbours": "remove"},
    ):
        with pytest.raises(
            hf.errors.DamagedFile, match="belongs to another model, recipe, relation or data set"
        ):
            _train(path, **options)


def test_another_set_of_trainable_layers_or_statistics_is_refused(tmp_path: Path) -> None:
    def train(path: Path, freeze: bool = False, mean: float = 0.0) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 900), nn.BatchNorm1d(900), nn.Linear(900, 2)).eval()
        model[1].running_mean[450] = mean
        model[2].requires_grad_(not freeze)
        hf.train(model, X, Y, RECIPE, max_distance=1, checkpoint=path, progress=False)

    path = tmp_path / "checkpoint"
    train(path)
    for change in ({"freeze": True}, {"mean": 5.0}):
        with pytest.raises(hf.errors.DamagedFile, match="belongs to another model"):
            train(path, **change)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    _train(path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(hf.errors.DamagedFile, match="digest"):
        _train(path)
