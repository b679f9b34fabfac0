"""`hf.Dataset`: its sources, the short form of training, and the one rule for labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch import nn

import holdfast as hf
from tests.engines.parts import make_records, network, require_same_bits

pytestmark = pytest.mark.filterwarnings("ignore:NOT private:holdfast.errors.HoldfastWarning")
QUIET: dict[str, Any] = {"progress": False}
HEAD = hf.LinearRecipe(batch_size=200, travel=9.0, batches=2)
NETWORK = hf.Recipe(batch_size=100, clip=0.1, batches=2)
OWNERS = [f"p{row % 60}" for row in range(200)]


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"ids": list(range(200))},
        {"persons": OWNERS, "max_records_per_person": 2},
    ],
    ids=["content", "ids", "persons"],
)
def test_the_short_form_gives_the_same_bits(columns: dict[str, Any]) -> None:
    x, y = make_records(200)
    data = hf.Dataset(x, y, name="ward-7", classes=2, **columns)
    short = {**columns, "dataset": "ward-7", **QUIET}
    require_same_bits(
        hf.train(network(), data, NETWORK, max_distance=2, **QUIET),
        hf.train(network(), x, y, NETWORK, max_distance=2, **short),
    )
    require_same_bits(
        hf.train_ensemble(network, data, NETWORK, members=3, max_distance=2, **QUIET),
        hf.train_ensemble(network, x, y, NETWORK, members=3, max_distance=2, **short),
    )
    head = hf.train_linear(data, HEAD, **QUIET)
    require_same_bits(head, hf.train_linear(x, y, HEAD, classes=2, **short))
    require_same_bits(head, hf.train_linear(data, recipe=HEAD, **QUIET))
    assert head.dataset == "ward-7"


def test_every_source_gives_the_same_bits(tmp_path: Path) -> None:
    x, y = make_records(200)
    table: dict[str, Any] = {"a": x[:, 0].double().tolist(), "b": x[:, 1].double().tolist()}
    table |= {"stays": ["yes" if each else "no" for each in y], "who": OWNERS}
    rules = hf.Preprocessing.ranges({"a": (-3, 3), "b": (-3, 3)})
    options: dict[str, Any] = {
        "label": "stays", "person": "who", "preprocessing": rules, "classes": ["no", "yes"],
        "max_records_per_person": 2, "name": "ward-7",
    }  # fmt: skip
    frame = pd.DataFrame(table)
    frame.to_csv(tmp_path / "t.csv", index=False)
    parquet.write_table(pa.table(table), tmp_path / "t.parquet", row_group_size=30)
    first = hf.train_linear(hf.Dataset.frame(frame, **options), HEAD, **QUIET)
    for data in (
        hf.Dataset.frame(pl.DataFrame(table), **options),
        hf.Dataset.csv(tmp_path / "t.csv", **options),
        hf.Dataset.parquet(tmp_path / "t.parquet", **options),
    ):
        assert repr(data) == "Dataset('ward-7', 200 records)"
        require_same_bits(first, hf.train_linear(data, HEAD, **QUIET))
    assert first.class_names([0, 1]) == ["no", "yes"]


def test_labels_are_read_as_names_or_as_numbers(tmp_path: Path) -> None:
    """With the classes "1" and "2", label 1 must not be class "2" from one source alone."""
    (tmp_path / "s.toml").write_text('classes = ["1", "2"]\n[columns.a]\nrange = [-1, 1]\n')
    rules = hf.Preprocessing.schema(tmp_path / "s.toml")
    x, y = {"a": [-1.0, 1.0] * 100}, [1, 2] * 100
    recipe = hf.LinearRecipe(batch_size=200, travel=20.0)
    parquet.write_table(pa.table({**x, "y": y}), tmp_path / "t.parquet")
    heads = [
        hf.train_linear(data, recipe, **QUIET)
        for data in (
            hf.Dataset(x, y, preprocessing=rules),
            hf.Dataset(x, torch.tensor(y), preprocessing=rules),
            hf.Dataset(x, [str(each) for each in y], preprocessing=rules),
            hf.Dataset.parquet(tmp_path / "t.parquet", label="y", preprocessing=rules),
        )
    ]
    for head in heads:
        require_same_bits(heads[0], head)
        assert head.class_names(head.predict({"a": [-1.0, 1.0]}).tolist()) == ["1", "2"]
    with pytest.raises(hf.errors.InvalidInput, match="not clear which class a number means"):
        hf.train_linear(x, [0, 1] * 100, recipe, preprocessing=rules, **QUIET)
    (tmp_path / "s.toml").write_text('classes = ["0", "1"]\n[columns.a]\nrange = [-1, 1]\n')
    same = hf.Preprocessing.schema(tmp_path / "s.toml")
    short = hf.train_linear(x, [0, 1] * 100, recipe, preprocessing=same, **QUIET)
    long = hf.train_linear(hf.Dataset(x, ["0", "1"] * 100, preprocessing=same), recipe, **QUIET)
    assert torch.equal(short.weights, long.weights)


@pytest.mark.parametrize("classes", ['["a", "b"]', '["1", "0"]', '["b", "0"]'])
def test_one_text_among_numbers_changes_no_other_label(tmp_path: Path, classes: str) -> None:
    """Otherwise a single record could exchange the classes of all others."""
    (tmp_path / "s.toml").write_text(f"classes = {classes}\n[columns.a]\nrange = [-1, 1]\n")
    rules = hf.Preprocessing.schema(tmp_path / "s.toml")
    x, y = {"a": [-1.0, 1.0] * 50}, [0, 1] * 49 + [0, rules.classes[0]]
    recipe = hf.LinearRecipe(batch_size=100, travel=9.0)
    with pytest.raises(hf.errors.InvalidInput, match="y: holds texts and other values"):
        hf.train_linear(x, y, recipe, preprocessing=rules, **QUIET)


def test_a_number_is_one_name_however_it_is_written() -> None:
    x = torch.tensor([[-1.0], [1.0]] * 100)
    for y in ([3, 7] * 100, [3.0, 7.0] * 100, ["3", "7"] * 100, torch.tensor([3, 7] * 100)):
        head = hf.train_linear(
            hf.Dataset(x, y, classes=[3, 7]), hf.LinearRecipe(batch_size=200, travel=20.0), **QUIET
        )
        assert head.class_names(head.predict([[-1.0], [1.0]]).tolist()) == ["3", "7"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": [1, 2], "persons": [1, 2]}, "both ids and persons were given"),
        ({"max_records_per_person": 2}, "needs persons="),
        ({"persons": [1, 2], "max_records_per_person": 0}, "max_records_per_person=0"),
        ({"preprocessing": "schema.toml"}, "preprocessing is a str: expected an hf.Preprocessing"),
        ({"classes": ["a", "a"]}, "at least 2 classes, each once"),
        ({"classes": ["", "yes"]}, "at least 2 classes, each once"),
        ({"classes": 1}, "classes=1"),
        ({"name": " "}, "dataset=' '"),
    ],
)
def test_contradictions_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(hf.errors.InvalidInput, match=message):
        hf.Dataset([[0.0], [1.0]], [0, 1], **change)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    x, y = make_records(20)
    data = hf.Dataset(x, y, classes=3)
    with pytest.raises(hf.errors.InvalidInput, match="is 2 classes; expected 3"):
        hf.train(network(), data, NETWORK, **QUIET)
    with pytest.raises(hf.errors.InvalidInput, match=r"recipe is a LinearRecipe: expected an hf.R"):
        hf.train(network(), data, HEAD, **QUIET)
    with pytest.raises(hf.errors.InvalidInput, match="recipe is a NoneType"):
        hf.train_linear(data, **QUIET)
    with pytest.raises(hf.errors.InvalidInput, match="needs persons="):
        hf.train_linear(data, HEAD, neighbours="add_remove_person", **QUIET)
    with pytest.raises(TypeError, match="unexpected argument 'idz'"):
        hf.train(nn.Linear(2, 2), x, y, NETWORK, idz=[1], **QUIET)
    frame = pd.DataFrame({"a": [0.0], "y": [1]})
    with pytest.raises(hf.errors.InvalidInput, match="'none': expected one column"):
        hf.Dataset.frame(frame, label="none")
    rules = hf.Preprocessing.ranges({"a": (0, 1)})
    with pytest.raises(hf.errors.InvalidInput, match="'a' is the label and also a feature"):
        hf.Dataset.frame(frame, label="a", preprocessing=rules)
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(hf.errors.InvalidInput, match="name the classes"):
        hf.Dataset.csv(tmp_path / "t.csv", label="y", preprocessing=rules)


@pytest.mark.parametrize("y", [None, 3, np.array(1), "yes"], ids=str)
def test_labels_that_are_none_are_refused(y: Any) -> None:
    x, _ = make_records(4)
    with pytest.raises(hf.errors.InvalidInput, match="expected one label per record"):
        hf.train(network(), x, y, NETWORK, **QUIET)


def test_labels_may_come_from_an_iterator_and_a_data_set_may_be_used_again() -> None:
    x, y = make_records(40)
    data = hf.Dataset(x, iter(y.tolist()), classes=np.array(2), persons=iter(OWNERS[:40]))
    recipe = hf.LinearRecipe(batch_size=40, travel=9.0)
    first = hf.train_linear(data, recipe, **QUIET)
    require_same_bits(first, hf.train_linear(data, recipe, **QUIET))
    names = hf.Dataset(x, iter(["a", "b"] * 20 + ["a"]), classes=["a", "b"])
    with pytest.raises(hf.errors.InvalidInput, match="one label per record"):
        hf.train_linear(names, recipe, **QUIET)
    owners = torch.arange(40) % 9
    assert hf.Dataset(x, y, persons=owners, max_records_per_person=np.int64(2)).persons == 9


def test_public_labels_follow_the_same_rule() -> None:
    x, y = make_records(40)
    recipe = hf.Recipe(batch_size=40)
    names = [("no", "yes")[int(each)] for each in y]
    named = hf.Dataset(x, names, classes=["no", "yes"])
    options: dict[str, Any] = {"max_distance": 1, **QUIET}
    require_same_bits(
        hf.train(network(), named, recipe, public=(x[:9] + 1, names[:9]), **options),
        hf.train(network(), x, y, recipe, public=(x[:9] + 1, y[:9]), **options),
    )
    with pytest.raises(hf.errors.InvalidInput, match="public y, row 1: 0 is not one of"):
        hf.train(network(), named, recipe, public=(x[:9], y[:9] * 0), **options)


def test_truth_values_and_odd_digits_as_names_of_classes(tmp_path: Path) -> None:
    x, recipe = {"a": [-1.0, 1.0] * 100}, hf.LinearRecipe(batch_size=200, travel=9.0)

    def rules(classes: str) -> hf.Preprocessing:
        (tmp_path / "s.toml").write_text(f"classes = {classes}\n[columns.a]\nrange = [-1, 1]\n")
        return hf.Preprocessing.schema(tmp_path / "s.toml")

    y = np.array([False, True] * 100)
    with pytest.raises(hf.errors.InvalidInput, match="not clear which class a number means"):
        hf.train_linear(x, y, recipe, preprocessing=rules('["true", "false"]'), **QUIET)
    same = rules('["false", "true"]')
    short = hf.train_linear(x, y, recipe, preprocessing=same, **QUIET)
    long = hf.train_linear(hf.Dataset(x, y, preprocessing=same), recipe, **QUIET)
    require_same_bits(short, long)
    hf.train_linear(x, [0, 1] * 100, recipe, preprocessing=rules('["²", "--1"]'), **QUIET)


def test_a_first_part_without_a_record_of_some_member(tmp_path: Path) -> None:
    """What is kept of a record has one shape, whether a part holds records or not."""
    x, y = make_records(62)
    table = pa.table({f"f{n}": x[:, n].numpy() for n in range(x.shape[1])} | {"y": y.numpy()})
    (tmp_path / "t").mkdir()
    parquet.write_table(table.slice(0, 2), tmp_path / "t" / "0.parquet")
    parquet.write_table(table.slice(2), tmp_path / "t" / "1.parquet")

    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        frozen = nn.Linear(x.shape[1], 8).requires_grad_(False)
        return nn.Sequential(frozen, nn.ReLU(), nn.Linear(8, 2))

    recipe, options = hf.Recipe(batch_size=10), {"members": 5, "max_distance": 1, **QUIET}
    data = hf.Dataset.parquet(tmp_path / "t", label="y")
    require_same_bits(
        hf.train_ensemble(make, data, recipe, **options),
        hf.train_ensemble(make, x, y, recipe, **options),
    )


def test_odd_frames_and_names_are_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame([[12345.0, 1.0, 2.0, 0]], columns=["a", "b", "a", "y"])
    with pytest.raises(hf.errors.InvalidInput, match="'a': expected one column"):
        hf.Dataset.frame(frame, label="y")
    for odd in (pa.table({"a": [12345.0], "y": [0]}), pl.DataFrame({"y": [0]}).lazy(), None):
        with pytest.raises(hf.errors.InvalidInput, match="frame is a") as caught:
            hf.Dataset.frame(odd, label="y")
        assert "12345" not in str(caught.value)
    with pytest.raises(hf.errors.InvalidInput, match="label=None: expected the name"):
        hf.Dataset.frame(frame, label=None)
    with pytest.raises(hf.errors.InvalidInput, match=r"id=\['p'\]: expected the name"):
        hf.Dataset.parquet(tmp_path / "t.parquet", label="y", id=["p"])
    for read in (hf.Dataset.csv, hf.Dataset.parquet):
        with pytest.raises(hf.errors.InvalidInput, match="expected an hf.Preprocessing"):
            read(tmp_path / "t", label="y", preprocessing="s.toml")
    rules = hf.Preprocessing.ranges({"a": (0, 1)})
    with pytest.raises(hf.errors.InvalidInput, match="path=None"):
        hf.Dataset.csv(None, label="y", preprocessing=rules)
    parquet.write_table(pa.table({"a": [0.1], "y": [0]}), tmp_path / "t.parquet")
    with pytest.raises(hf.errors.InvalidInput, match="columns=3"):
        hf.Dataset.parquet(tmp_path / "t.parquet", label="y", columns=3)


def test_names_of_classes_stay_with_a_network(tmp_path: Path) -> None:
    x, y = make_records(200)
    named = hf.Dataset(x, ["yes" if each else "no" for each in y], classes=["no", "yes"])
    trained = hf.train(network(), named, NETWORK, max_distance=2, **QUIET)
    ensemble = hf.train_ensemble(network, named, NETWORK, members=2, max_distance=2, **QUIET)
    for number, model in enumerate((trained, ensemble)):
        model.save(tmp_path / f"{number}.holdfast")
        loaded = hf.load(tmp_path / f"{number}.holdfast")
        assert loaded.class_names([0, 1]) == model.class_names([0, 1]) == ["no", "yes"]
    plain = hf.train(network(), x, y, NETWORK, max_distance=2, **QUIET)
    require_same_bits(plain, trained)
    assert "names" not in plain.save_to("", {})  # signatures of older files still hold


def test_no_record_is_shown() -> None:
    assert repr(hf.Dataset([[12345.0]], [0], ids=["secret"])) == "Dataset('default', 1 records)"
