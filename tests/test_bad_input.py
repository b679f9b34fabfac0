"""Bad input: a clear error of ours, before any work starts."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.training import loop

X, Y = torch.randn(20, 4), torch.arange(20) % 2
RECIPE = {"batch_size": 20, "clip": 0.1}


@pytest.fixture(autouse=True)
def _no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step may be taken."""

    def refuse(*args):
        raise AssertionError("work started on bad input")

    monkeypatch.setattr(loop, "_step", refuse)


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def _changed(value: float) -> torch.Tensor:
    x = X.clone()
    x[7, 2] = value
    return x


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (_changed(math.nan), Y, r"x holds NaN or infinite values in 1 of 20 rows \(first: row 7\)"),
        (_changed(math.inf), Y, "x holds NaN or infinite"),
        (X, Y.float(), "y is torch.float32: expected whole numbers"),
        (X, Y + 1, r"y\[1\] = 2: expected a label from 0 to 1"),
        (X, Y - 1, r"y\[0\] = -1: expected"),
        (X, Y[:10], r"y has shape \(10,\): expected \(20,\)"),
        (X, ["a"] * 20, "encode text labels first"),
        (X[:0], Y[:0], "x is empty"),
        (X[0], Y, "expected one row a record"),
        (X.to(torch.complex64), Y, "expected real numbers"),
        (torch.full((20, 4), 1e300, dtype=torch.float64), Y, "x holds NaN or infinite"),
    ],
)
def test_records(x, y, message) -> None:
    with pytest.raises(hf.InvalidInput, match=message):
        hf.train(_model(), x, y, hf.Recipe(**RECIPE), max_distance=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_distance": 0}, "max_distance=0: expected a whole number, at least 1"),
        ({"max_distance": 2.5}, "max_distance=2.5"),
        ({"distances": []}, "expected growing whole numbers"),
        ({"distances": [1, 1, 2]}, "expected growing whole numbers"),
        ({"distances": [0, 2]}, "each at least 1"),
        ({"distances": [1], "max_distance": 2}, "not both"),
        ({"neighbours": "swap"}, "neighbours='swap': expected one of 'add_remove', 'replace', 'remove'"),
        ({"ids": [1] * 20}, r"ids\[1\] = 1 is also the id of record 0"),
        ({"ids": range(19)}, "19 ids for 20 records"),
        ({"ids": [1.5] * 20}, "expected a whole number or a string"),
        ({"public": (X[:, :3], Y)}, r"public x has shape \(20, 3\): expected \(records, 4\)"),
        ({"public": (X, Y + 5)}, r"public y\[0\] = 5"),
        ({"public": X}, "expected a pair"),
    ],
)
def test_options(options, message) -> None:
    with pytest.raises(hf.InvalidInput, match=message):
        hf.train(_model(), X, Y, hf.Recipe(**RECIPE), **options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip": math.inf}, "clip=inf: a certificate needs a finite positive clip; try clip=0.05"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"clip": -1.0}, "clip=-1.0"),
        ({"clip": math.nan}, "clip=nan"),
        ({"learning_rate": 2.0, "weight_decay": 0.6}, "expected at most 1; lower weight_decay"),
        ({"learning_rate": 1.0, "weight_decay": 0.6, "momentum": 0.9, "nesterov": True}, "expected at most 1"),
        ({"learning_rate": 0.1, "min_learning_rate": 3.0, "weight_decay": 0.5}, "expected at most 1"),
        ({"learning_rate": math.nan}, "learning_rate=nan"),
        ({"learning_rate": -0.1}, "learning_rate=-0.1"),
        ({"learning_rate": 0}, "too small"),
        ({"epochs": 0}, "epochs=0"),
        ({"batches": 1.5}, "batches=1.5"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"dampening": 1.5, "momentum": 0.5}, "dampening=1.5"),
        ({"nesterov": True}, "nesterov=True needs momentum"),
        ({"loss": "hinge"}, "loss='hinge': expected one of"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_recipes(settings, message) -> None:
    with pytest.raises(hf.InvalidInput, match=message):
        hf.Recipe(**settings)


def test_add_remove_needs_a_public_normaliser() -> None:
    for relation in ("add_remove", "remove"):
        with pytest.raises(hf.InvalidInput, match="give a round one, for example batch_size=20"):
            hf.train(_model(), X, Y, hf.Recipe(clip=0.1), relation)


class _Odd(nn.Module):
    def forward(self, x):
        return x * 2


def _training_batchnorm() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).train()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 2)), r"layer '1' \(GELU\) cannot be bounded; supported: AdaptiveAvgPool2d"),
        (nn.Sequential(nn.Linear(4, 3), nn.Sequential(_Odd()), nn.Linear(3, 2)), r"layer '1.0' \(_Odd\)"),
        (_training_batchnorm(), "training mode.*call model.eval"),
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 2)), "without running statistics"),
        (nn.Sequential(nn.Linear(5, 2)), r"does not take records of shape \(4,\)"),
        (nn.Sequential(nn.Linear(4, 2)).half(), "torch.float16: expected float32 or float64"),
        (nn.Sequential(nn.Linear(4, 2)).requires_grad_(False), "nothing to train"),
        (nn.Sequential(nn.Linear(4, 3), nn.LeakyReLU(-0.1), nn.Linear(3, 2)), "negative_slope=-0.1"),
        (nn.Sequential(nn.Linear(4, 3), nn.Softplus(beta=2), nn.Linear(3, 2)), "expected beta=1"),
        (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2).double()), "mix float32 and float64"),
        ("a string", "expected a torch.nn.Module"),
    ],
)
def test_models(model, message) -> None:
    with pytest.raises(hf.UnsupportedModel, match=message):
        hf.train(model, X, Y, hf.Recipe(**RECIPE))


def test_weights_that_are_not_finite() -> None:
    model = _model()
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with pytest.raises(hf.UnsupportedModel, match="'0.weight' holds NaN"):
        hf.train(model, X, Y, hf.Recipe(**RECIPE))


def test_shared_parameters() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    with pytest.raises(hf.UnsupportedModel, match="share a parameter"):
        hf.train(nn.Sequential(first, second), X, Y, hf.Recipe(**RECIPE))


def test_images_without_flatten() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Linear(2, 2))
    with pytest.raises(hf.UnsupportedModel, match=r"put nn.Flatten\(\) before it"):
        hf.train(model, torch.randn(20, 1, 4, 4), Y, hf.Recipe(**RECIPE))


@pytest.mark.parametrize(
    ("outputs", "loss", "message"),
    [
        (1, "cross_entropy", "one logit per class, got 1; use 'binary_cross_entropy'"),
        (1, "squared_error", "one logit per class"),
        (2, "binary_cross_entropy", "needs a model with one logit, got 2; use 'cross_entropy'"),
    ],
)
def test_outputs_that_do_not_fit_the_loss(outputs, loss, message) -> None:
    with pytest.raises(hf.InvalidInput, match=message):
        hf.train(nn.Sequential(nn.Linear(4, outputs)), X, Y, hf.Recipe(**RECIPE, loss=loss))


def test_a_recipe_of_another_type() -> None:
    with pytest.raises(hf.InvalidInput, match=r"recipe is a dict: expected an hf.Recipe"):
        hf.train(_model(), X, Y, RECIPE)


def test_dropout_is_left_out_and_said_so() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    with pytest.warns(hf.HoldfastWarning, match="without dropout"), pytest.raises(AssertionError, match="work started"):
        hf.train(model, X, Y, hf.Recipe(**RECIPE), progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(AssertionError, match="work started"):
            hf.train(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0), nn.Linear(3, 2)), X, Y, hf.Recipe(**RECIPE), progress=False)


def test_all_errors_are_ours() -> None:
    assert all(issubclass(error, hf.HoldfastError) for error in (hf.InvalidInput, hf.UnsupportedModel, hf.UnsoundBounds, hf.DamagedFile))
