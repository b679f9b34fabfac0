"""The soundness checks must catch broken variants; otherwise they would prove nothing."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch

import holdfast as hf
from holdfast.intervals import Interval
from holdfast.networks import boxes as descent
from holdfast.networks import loop
from holdfast.networks import training as training_module

from .cases import CASES, Case, neighbouring_data_set

prepare_module = import_module("holdfast.records.prepare")  # not the function of that name


def _case(name: str) -> Case:
    return next(case for case in CASES if str(case) == name)


def _violations(case: Case, neighbours: int) -> int:
    model = case.model(seed=0)
    found = 0
    for seed in range(neighbours):
        x, y, ids = case.records_from(seed=seed)
        here = case.train(model, x, y, ids)
        there = case.retrain(model, *neighbouring_data_set(case, here, x, y, ids, 1, seed))
        found += not here.bounds(1).encloses(there.bounds(0))
    return found


def test_index_based_batching_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches by row number are caught: removing record 0 moves every later record."""
    base = _case("logistic-add_remove-float32")
    # With this decay, early batches have the largest weight.
    case = replace(base, recipe={"batches": 4, "epochs": 1, "decay": 5.0, "clip": 0.5})
    assert _violations(case, 4) == 0
    monkeypatch.setattr(
        prepare_module,
        "assign_parts",
        lambda ids, parts, seed, purpose: torch.arange(len(ids)) % parts,
    )
    assert _violations(case, 4) > 0


def test_the_realised_batch_size_as_normaliser_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case("logistic-add_remove-float32")

    def realised(batch_size, relation, units, split, public=0):
        return max(1, units)

    monkeypatch.setattr(training_module, "normaliser", realised)
    assert _violations(case, 8) > 0


def test_an_allowance_one_unit_too_small_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case("saturated-add_remove-float32")

    class Short(descent.GradientSums):
        def bounds(self, name: str, distance: int) -> Interval:
            whole = super().bounds(name, distance)
            return Interval(whole.lower + distance, whole.upper - distance)

    monkeypatch.setattr(loop, "GradientSums", Short)
    assert _violations(case, 8) > 0


def test_replace_with_several_batches_requires_ids() -> None:
    """`replace` with several batches requires ids.

    With content ids, an exchanged record could move to another batch.
    """
    case = _case("relu-minibatch-replace-float32")
    x, y, _ = case.records_from(seed=0)
    with pytest.raises(hf.errors.InvalidInput, match="needs ids"):
        hf.train(
            case.model(0),
            x,
            y,
            case.full_recipe(),
            neighbours="replace",
            max_distance=1,
            progress=False,
        )
