"""Warnings of training point at the line of the caller, not at a line of holdfast."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import holdfast as hf

X = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None].repeat(1, 2)
Y = (X[:, 0] > 0).long()
OPTIONS: dict[str, Any] = {"progress": False, "max_distance": 1}


def useless_network() -> None:
    hf.train(nn.Linear(2, 2), X * 0, Y, hf.Recipe(batch_size=40), **OPTIONS)


def overflowing_network() -> None:
    recipe = hf.Recipe(batch_size=40, learning_rate=1e30, epochs=3)
    hf.train(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), X * 1e30, Y, recipe, **OPTIONS)


def overflowing_ensemble() -> None:
    recipe = hf.Recipe(batch_size=20, learning_rate=1e30, epochs=3)
    make = lambda _: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))  # noqa: E731
    hf.train_ensemble(make, X * 1e30, Y, recipe, members=2, **OPTIONS)


def useless_head() -> None:
    recipe = hf.LinearRecipe(batch_size=40, travel=5.0)
    hf.train_linear(X * 0 + 1, Y, recipe, classes=2, progress=False)


def badly_scaled_head() -> None:
    recipe = hf.LinearRecipe(batch_size=40, travel=5.0)
    hf.train_linear(X * 1e-9, Y, recipe, classes=2, progress=False)


def wrong_batch_size() -> None:
    recipe = hf.LinearRecipe(batch_size=4000, travel=5.0)
    hf.train_linear(X, Y, recipe, classes=2, progress=False)


@pytest.mark.parametrize(
    ("train", "text"),
    [
        (useless_network, "no better than always"),
        (overflowing_network, "overflow"),
        (overflowing_ensemble, "overflow"),
        (useless_head, "no better than always"),
        (badly_scaled_head, "median norm"),
        (wrong_batch_size, "batch_size=4000"),
    ],
)
def test_a_warning_names_the_line_that_called_training(
    train: Callable[[], None], text: str
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train()
    ours = [each for each in caught if issubclass(each.category, hf.errors.HoldfastWarning)]
    assert any(text in str(each.message) for each in ours), [str(each.message) for each in ours]
    assert {each.filename for each in ours} == {__file__}
