"""Bad input raises a clear holdfast error before any work starts."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.networks import loop

X, Y = torch.randn(20, 4), torch.arange(20) % 2
RECIPE = {"batch_size": 20, "clip": 0.1}


@pytest.fixture(autouse=True)
def _no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a training step is taken."""

    def refuse(*args):
        raise AssertionError("work started on bad input")

    monkeypatch.setattr(loop, "_step", refuse)


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def _with_entry(value: float) -> torch.Tensor:
    x = X.clone()
    x[7, 2] = value
    return x


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (
            _with_entry(math.nan),
            Y,
            r"x holds NaN or infinite values in 1 of 20 rows \(first: row 8, column 3\)",
        ),
        (_with_entry(math.inf), Y, "x holds NaN or infinite"),
        (X, Y.float(), "y is torch.float32: expected whole numbers"),
        (X, Y + 1, r"y\[1\] = 2: expected a label from 0 to 1"),
        (X, Y - 1, r"y\[0\] = -1: expected"),
        (X, Y[:10], r"y has shape \(10,\): expected \(20,\)"),
        (X, ["a"] * 20, "encode text labels first"),
        (X[:0], Y[:0], "x is empty"),
        (X[0], Y, "one row for each"),
        (X.to(torch.complex64), Y, "expected dense real numbers"),
        ([["a", "b"]] * 20, Y, "x is a list: expected a tensor or array of numbers"),
        (None, Y, "x is a NoneType"),
        ([[1.0], [1.0, 2.0]], Y, "x is a list"),
        (X.to_sparse(), Y, "expected dense real numbers"),
        (np.ma.masked_array(X.numpy(), mask=False), Y, "masked arrays hold missing values"),
        (X, np.ma.masked_array(Y.numpy(), mask=False), "masked arrays"),
        (X, Y[:, None], r"y has shape \(20, 1\)"),
    ],
)
def test_records(x, y, message) -> None:
    with pytest.raises(hf.errors.InvalidInput, match=message):
        hf.train(_model(), x, y, hf.Recipe(**RECIPE), max_distance=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_distance": 0}, "max_distance=0: expected a whole number, at least 1"),
        ({"max_distance": 2.5}, "max_distance=2.5"),
        ({"max_distance": True}, "max_distance=True"),
        ({"max_distance": 10**9 + 1}, "expected at most 1,000,000,000"),
        (
            {"distances": [1, 2**52 - 1]},
            "distances=4503599627370495: expected at most 1,000,000,000",
        ),
        ({"distances": 5}, "distances=5: expected several"),
        ({"distances": []}, "expected growing whole numbers"),
        ({"distances": [1, 1, 2]}, "expected growing whole numbers"),
        ({"distances": [0, 2]}, "distances=0: expected a whole number, at least 1"),
        ({"distances": [1], "max_distance": 2}, "not both"),
        (
            {"neighbours": "swap"},
            "neighbours='swap': expected one of 'add_remove', 'replace', 'remove'",
        ),
        ({"ids": [1] * 20}, r"ids, row 2: 1 is also the id of row 1"),
        ({"ids": range(19)}, "19 ids for 20 records"),
        ({"ids": [1.5] * 20}, "expected a whole number or a string"),
        ({"ids": "abcdefghijklmnopqrst"}, "ids is a str"),
        ({"ids": 5}, "ids is a int"),
        (
            {"ids": [*"abcdefghijklmnopqrs", np.str_("a")]},
            r"ids, row 20: 'a' is also the id of row 1",
        ),
        ({"dataset": None}, "dataset=None: expected a name"),
        (
            {"checkpoint": "no/such/folder/file"},
            "does not exist; create it first",
        ),
        ({"checkpoint": "."}, "is a folder; give the name of a file"),
        ({"public": (X[:, :3], Y)}, r"public x has shape \(20, 3\): expected \(records, 4\)"),
        ({"public": (X, Y + 5)}, r"public y\[0\] = 5"),
        ({"public": X}, "expected a pair"),
    ],
)
def test_options(options, message) -> None:
    with pytest.raises(hf.errors.InvalidInput, match=message):
        hf.train(_model(), X, Y, hf.Recipe(**RECIPE), **options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip": math.inf}, "clip=inf: a certificate needs a finite positive clip; try clip=0.05"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"clip": -1.0}, "clip=-1.0"),
        ({"clip": math.nan}, "clip=nan"),
        ({"learning_rate": 2.0, "weight_decay": 0.6}, "expected at most 1; lower weight_decay"),
        (
            {"learning_rate": 1.0, "weight_decay": 0.6, "momentum": 0.9, "nesterov": True},
            "expected at most 1",
        ),
        (
            {"learning_rate": 0.1, "min_learning_rate": 3.0, "weight_decay": 0.5},
            "expected at most 1",
        ),
        ({"learning_rate": math.nan}, "learning_rate=nan"),
        ({"learning_rate": -0.1}, "learning_rate=-0.1"),
        ({"learning_rate": 0}, "learning_rate=0.0: expected a positive number"),
        ({"learning_rate": 10**400}, "learning_rate=1000"),
        ({"clip": True}, "clip=True"),
        ({"clip": "0.1"}, "clip='0.1'"),
        ({"nesterov": "no"}, "nesterov='no': expected True or False"),
        ({"loss": ["cross_entropy"]}, "loss="),
        ({"seed": 2**130}, "seed="),
        ({"batch_size": 10**400}, "batch_size="),
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
    with pytest.raises(hf.errors.InvalidInput, match=message):
        hf.Recipe(**settings)


def test_add_remove_needs_a_public_normaliser() -> None:
    for relation in ("add_remove", "remove"):
        with pytest.raises(
            hf.errors.InvalidInput, match="must be a public number; give a round one"
        ):
            hf.train(_model(), X, Y, hf.Recipe(clip=0.1), neighbours=relation)


def test_no_public_number_is_suggested_from_the_number_of_records() -> None:
    """The message does not depend on the number of records.

    A number suggested there would end up in a public setting.
    """
    said = set()
    for count in (7, 20, 2000, 2001):
        with pytest.raises(hf.errors.InvalidInput, match="batch_size=None") as caught:
            hf.train(
                nn.Sequential(nn.Linear(2, 2)),
                torch.zeros(count, 2),
                torch.arange(count) % 2,
                hf.Recipe(clip=0.1),
                progress=False,
            )
        said.add(str(caught.value))
    assert len(said) == 1


def test_a_clip_too_small_for_the_models_type() -> None:
    with pytest.raises(hf.errors.InvalidInput, match="too small for a model in torch.float32"):
        hf.train(_model(), X, Y, hf.Recipe(batch_size=20, clip=1e-36))


def test_numpy_numbers_are_accepted() -> None:
    recipe = hf.Recipe(
        epochs=np.int64(2),
        learning_rate=np.float32(0.5),
        clip=np.float64(0.1),
        batch_size=np.int32(20),
    )
    assert recipe == hf.Recipe(epochs=2, learning_rate=0.5, clip=0.1, batch_size=20)
    assert type(recipe.epochs) is int


def test_saving_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # this test needs to train
    certified = hf.train(_model(), X, Y, hf.Recipe(**RECIPE), max_distance=1, progress=False)
    with pytest.raises(hf.errors.InvalidInput, match="create it first"):
        certified.save(tmp_path / "absent" / "model.holdfast")
    with pytest.raises(hf.errors.InvalidInput, match="is a folder"):
        certified.save(tmp_path)
    with pytest.raises(hf.errors.DamagedFile, match="is a folder, not a file"):
        hf.load(tmp_path)
    assert not list(tmp_path.iterdir())


class _Odd(nn.Module):
    def forward(self, x):
        return x * 2


class _Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)


class _Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


def _with_variance(value: float) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).eval()
    model[1].running_var[1] = value
    return model


def _hooked() -> nn.Sequential:
    model = _model()
    model[1].register_forward_hook(lambda module, args, output: -output)
    return model


def _training_batchnorm() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).train()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 2)),
            r"layer '1' \(GELU\) cannot be bounded; supported, in nested nn.Sequential: "
            r"AdaptiveAvgPool2d",
        ),
        (
            nn.Sequential(nn.Linear(4, 3), nn.Sequential(_Odd()), nn.Linear(3, 2)),
            r"layer '1.0' \(_Odd\)",
        ),
        (_training_batchnorm(), "training mode.*call model.eval"),
        (
            nn.Sequential(
                nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 2)
            ),
            "without running statistics",
        ),
        (nn.Sequential(nn.Linear(5, 2)), r"does not take float records of shape \(4,\)"),
        (_Custom(), r"layer '' \(_Custom\) cannot be bounded.*write the model as nn.Sequential"),
        (
            nn.Sequential(nn.Linear(4, 3), nn.BatchNorm2d(3).eval(), nn.Linear(3, 2)),
            "does not take float records",
        ),
        (
            nn.Sequential(nn.LSTM(4, 3).requires_grad_(False), nn.Linear(3, 2)),
            "does not take float records",
        ),
        (nn.Sequential(nn.LazyLinear(2)), "lazy layers"),
        (nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2)).train(), "training mode"),
        (_with_variance(-1.0), "a variance cannot be negative"),
        (_with_variance(math.nan), "'1.running_var' holds NaN"),
        (_hooked(), "remove hooks"),
        (nn.Sequential(_Noise(), nn.Linear(4, 2)), "remove what is random"),
        (nn.Sequential(nn.Linear(4, 2)).half(), "torch.float16: expected float32 or float64"),
        (nn.Sequential(nn.Linear(4, 2)).requires_grad_(False), "nothing to train"),
        (
            nn.Sequential(nn.Linear(4, 3), nn.LeakyReLU(-0.1), nn.Linear(3, 2)),
            "negative_slope=-0.1",
        ),
        (nn.Sequential(nn.Linear(4, 3), nn.Softplus(beta=2), nn.Linear(3, 2)), "expected beta=1"),
        (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2).double()), "mix float32 and float64"),
        ("a string", "expected a torch.nn.Module"),
    ],
)
def test_models(model, message) -> None:
    with pytest.raises(hf.errors.UnsupportedModel, match=message):
        hf.train(model, X, Y, hf.Recipe(**RECIPE))


def test_weights_that_are_not_finite() -> None:
    model = _model()
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with pytest.raises(hf.errors.UnsupportedModel, match="'0.weight' holds NaN"):
        hf.train(model, X, Y, hf.Recipe(**RECIPE))


def test_shared_parameters() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    with pytest.raises(hf.errors.UnsupportedModel, match="share a parameter"):
        hf.train(nn.Sequential(first, second), X, Y, hf.Recipe(**RECIPE))


def test_images_without_flatten() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Linear(2, 2))
    with pytest.raises(hf.errors.UnsupportedModel, match=r"put nn.Flatten\(\) before it"):
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
    with pytest.raises(hf.errors.InvalidInput, match=message):
        hf.train(nn.Sequential(nn.Linear(4, outputs)), X, Y, hf.Recipe(**RECIPE, loss=loss))


def test_a_recipe_of_another_type() -> None:
    with pytest.raises(hf.errors.InvalidInput, match=r"recipe is a dict: expected an hf.Recipe"):
        hf.train(_model(), X, Y, RECIPE)


def test_dropout_is_ignored_with_a_warning() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    with (
        pytest.warns(hf.errors.HoldfastWarning, match="without dropout"),
        pytest.raises(AssertionError, match="work started"),
    ):
        hf.train(model, X, Y, hf.Recipe(**RECIPE), progress=False)
    with (
        pytest.warns(hf.errors.HoldfastWarning, match="layer '0'"),
        pytest.raises(AssertionError, match="work started"),
    ):
        hf.train(
            nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2)),
            X,
            Y,
            hf.Recipe(**RECIPE),
            progress=False,
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(AssertionError, match="work started"):
            hf.train(
                nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0), nn.Linear(3, 2)),
                X,
                Y,
                hf.Recipe(**RECIPE),
                progress=False,
            )


def test_all_errors_derive_from_holdfast_error() -> None:
    assert all(
        issubclass(error, hf.HoldfastError)
        for error in (
            hf.errors.InvalidInput,
            hf.errors.UnsupportedModel,
            hf.errors.UnsoundBounds,
            hf.errors.DamagedFile,
        )
    )


def test_other_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.layers import Network

    monkeypatch.setattr(Network, "device", property(lambda network: torch.device("cuda")))
    monkeypatch.setattr(
        Network, "first_input", lambda network, features: pytest.fail("training continued")
    )
    monkeypatch.setattr(
        "holdfast.layers.network._refuse_rules_that_differ_from_model", lambda network: None
    )
    x, y = torch.randn(10, 2), torch.arange(10) % 2
    with pytest.raises(hf.errors.InvalidInput, match=r"the model is on cuda: .* model.cpu\(\)"):
        hf.train(
            nn.Sequential(nn.Linear(2, 2)),
            x,
            y,
            hf.Recipe(batch_size=10),
            max_distance=1,
            progress=False,
        )
