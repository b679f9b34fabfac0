"""Signed files: which signatures a predictor accepts, requires and refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.files import read, write
from tests.ledger.parts import NAME, query, small_model, sqlite_at

KIND = "holdfast certified model"
TENTH = hf.StableResponse(0.1)


@pytest.fixture
def ledger(tmp_path: Path) -> hf.Ledger:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    return ledger


@pytest.fixture(scope="module")
def model() -> hf.Certified:
    return small_model(max_distance=3)


def test_a_signed_file_is_accepted_wherever_one_is_required(
    ledger: hf.Ledger, model: hf.Certified, tmp_path: Path
) -> None:
    model.save(tmp_path / "model.holdfast", ledger=ledger)
    loaded = hf.load(tmp_path / "model.holdfast")
    assert (
        hf.PrivatePredictor(loaded, ledger, mechanism=TENTH, require_signature=True)
        .ask(query(1))
        .cost
        == 0.1
    )
    assert hf.PrivatePredictor(loaded, ledger, mechanism=TENTH).ask(query(1)).cost == 0.0


def test_boxes_of_width_zero_are_found_out(
    ledger: hf.Ledger, model: hf.Certified, tmp_path: Path
) -> None:
    """A rewritten file with a valid digest and boxes of width zero is refused.

    All its boxes hold only the nominal model, so that every label would look stable.
    """
    path = tmp_path / "model.holdfast"
    model.save(path, ledger=ledger)
    header, tensors = read(path, KIND)
    for name, value in tensors.items():
        if name.startswith(("0/lower/", "0/upper/")):
            tensors[name] = value[:1].expand_as(value).contiguous()
    write(path, KIND, header, tensors)
    forged = hf.load(path)
    for required in (True, False):  # the file claims a signature of this ledger
        with pytest.raises(hf.errors.DamagedFile, match="not the one that was signed"):
            hf.PrivatePredictor(forged, ledger, mechanism=TENTH, require_signature=required)
    write(path, KIND, {**header, "signature": None}, tensors)
    with pytest.raises(hf.errors.InvalidInput, match="has no signature, and one is required"):
        hf.PrivatePredictor(hf.load(path), ledger, mechanism=TENTH, require_signature=True)


def test_a_model_that_was_changed_in_memory_is_found_out(
    ledger: hf.Ledger, model: hf.Certified, tmp_path: Path
) -> None:
    model.save(tmp_path / "model.holdfast", ledger=ledger)
    loaded = hf.load(tmp_path / "model.holdfast")
    for changed in (
        dataclasses.replace(
            loaded,
            ladder=loaded.ladder[:1]
            + tuple(dataclasses.replace(loaded.ladder[0], distance=k) for k in (1, 2, 3)),
        ),
        dataclasses.replace(loaded, run_id="0" * 32),
        dataclasses.replace(loaded, recipe=dataclasses.replace(loaded.recipe, clip=0.2)),
    ):
        with pytest.raises(hf.errors.DamagedFile, match="not the one that was signed"):
            hf.PrivatePredictor(changed, ledger, mechanism=TENTH)


def test_another_ledgers_signature_counts_for_nothing(
    ledger: hf.Ledger, model: hf.Certified, tmp_path: Path
) -> None:
    other = hf.Ledger(f"sqlite:///{tmp_path}/other.db")
    other.create_budget("elsewhere", hf.Budget(1.0), queries=10)
    model.save(tmp_path / "model.holdfast", ledger=other)
    loaded = hf.load(tmp_path / "model.holdfast")
    with pytest.raises(
        hf.errors.InvalidInput, match="a signature of another ledger, and one is required"
    ):
        hf.PrivatePredictor(loaded, ledger, mechanism=TENTH, require_signature=True)
    assert hf.PrivatePredictor(loaded, ledger, mechanism=TENTH).ask(query(1)).cost == 0.1


def test_an_ensemble_is_signed_as_a_whole(ledger: hf.Ledger, tmp_path: Path) -> None:
    import torch
    from torch import nn

    x, y = torch.randn(60, 2), torch.arange(60) % 2
    recipe = hf.Recipe(batch_size=20, clip=0.1)
    ensemble = hf.train_ensemble(
        lambda seed: nn.Sequential(nn.Linear(2, 2)),
        x,
        y,
        recipe,
        members=3,
        max_distance=2,
        dataset=NAME,
        progress=False,
    )
    ensemble.save(tmp_path / "model.holdfast", ledger=ledger)
    loaded = hf.load(tmp_path / "model.holdfast")
    assert loaded.run_id == ensemble.run_id
    assert (
        hf.PrivatePredictor(loaded, ledger, mechanism=TENTH, require_signature=True)
        .ask(query(1))
        .cost
        == 0.1
    )
    members = (dataclasses.replace(loaded.members[0], run_id="0" * 32), *loaded.members[1:])
    with pytest.raises(hf.errors.DamagedFile, match="not the one that was signed"):
        hf.PrivatePredictor(dataclasses.replace(loaded, members=members), ledger, mechanism=TENTH)


def test_signing_needs_a_ledger(model: hf.Certified, tmp_path: Path) -> None:
    with pytest.raises(hf.errors.InvalidInput, match="no ledger here"):
        model.save(tmp_path / "model.holdfast", ledger=hf.Ledger(f"sqlite:///{tmp_path}/none.db"))
    with pytest.raises(hf.errors.InvalidInput, match="expected the hf.Ledger"):
        model.save(tmp_path / "model.holdfast", ledger="sqlite:///ledger.db")
    assert not (tmp_path / "model.holdfast").exists()
