"""Useless models are recognised: one label for nearly all queries, or no better than guessing."""

from __future__ import annotations

import warnings

import pytest
import torch

import holdfast as hf
from holdfast.certificates import why_useless
from holdfast.errors import HoldfastWarning

pytestmark = pytest.mark.filterwarnings("error")


def labels(ones: int, of: int = 100) -> torch.Tensor:
    return torch.tensor([1] * ones + [0] * (of - ones))


@pytest.mark.parametrize(
    ("given", "right", "found"),
    [
        (labels(0), labels(7), "accuracy 0.930 is no better than always answering no"),
        (labels(0), labels(7), "gives the label no to 100.0%"),
        (labels(93).flip(0), labels(7), "always answering no, which is right for 0.930"),
        (labels(99), None, "gives the label yes to 99.0% of the queries"),
        (labels(5), labels(10), None),
        (labels(50), None, None),
        (labels(30), labels(7), None),  # less accurate than "no", but tells the classes apart
        (labels(50), labels(50), None),
        (labels(0), labels(0), None),  # only one class is asked about
        (labels(1, 1), None, None),  # one query
        (labels(0, 0), None, None),
    ],
)
def test_why(given: torch.Tensor, right: torch.Tensor | None, found: str | None) -> None:
    why = why_useless(given, right, ["no", "yes"])
    assert why is None if found is None else found in str(why)


def records() -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.tensor([0] * 900 + [1] * 100)
    return torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)), y


def test_training_warns_of_a_constant_model() -> None:
    x, y = records()
    with pytest.warns(HoldfastWarning, match="no better than always answering 0"):
        hf.train(
            torch.nn.Linear(3, 2), x, y, hf.Recipe(batch_size=1000, clip=1.0),
            max_distance=1, progress=False,
        )  # fmt: skip
    recipe = hf.LinearRecipe(batch_size=1000, travel=10.0)
    with pytest.warns(HoldfastWarning, match="no better than always answering healthy"):
        hf.train_linear(
            x, ["healthy"] * 900 + ["ill"] * 100, recipe, classes=["healthy", "ill"], progress=False
        )


@pytest.mark.parametrize(("rows", "said"), [(1, "the only record is"), (9, "all 9 records are")])
def test_training_warns_of_a_single_class(rows: int, said: str) -> None:
    x, y = torch.randn(rows, 3), torch.ones(rows, dtype=torch.int64)
    recipe = hf.LinearRecipe(batch_size=rows, travel=1.0)
    with pytest.warns(HoldfastWarning, match=f"{said} of the class ill, so there is nothing"):
        hf.train_linear(x, ["ill"] * rows, recipe, classes=["well", "ill"], progress=False)
    with pytest.warns(HoldfastWarning, match=f"{said} of the class 1, so there is nothing"):
        hf.train(
            torch.nn.Linear(3, 2), x, y, hf.Recipe(batch_size=rows), max_distance=1, progress=False
        )


def test_simulation_warns_of_a_constant_model() -> None:
    x, y = records()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        head = hf.train_linear(
            x, y, hf.LinearRecipe(batch_size=1000, travel=1.0), classes=2, progress=False
        )
    with pytest.warns(HoldfastWarning, match="NOT private: accuracy 0.* is no better"):
        hf.simulate(head, x, y, budget=hf.Budget(1.0, 1e-6), queries_planned=[1])


def test_a_useful_model_is_not_warned_of() -> None:
    y = torch.tensor([0] * 60 + [1] * 40)
    x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0)) + 3.0 * y[:, None]
    recipe = hf.LinearRecipe(batch_size=100, travel=30.0)
    head = hf.train_linear(x, y, recipe, classes=2, progress=False)
    hf.simulate(head, x, y, budget=hf.Budget(1.0, 1e-6), queries_planned=[1])
