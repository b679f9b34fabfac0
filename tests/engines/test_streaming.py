"""Records in Parquet files give the same bits as records in memory, and the same refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch import nn

import holdfast as hf
from holdfast.records import parquet as parquet_module
from holdfast.records import store

from .parts import WIDTH, make_records, network, require_same_bits, write_files

# Records of very different sizes are unsuitable for a good model, and good for this test.
pytestmark = [
    pytest.mark.usefixtures("no_shape_checks"),
    pytest.mark.filterwarnings("ignore:NOT private:holdfast.errors.HoldfastWarning"),
]
QUIET: dict[str, Any] = {"progress": False}
ROWS = 500
OWNERS = [f"p{number % 170}" for number in range(ROWS)]
IDS = [f"id-{number}" for number in range(ROWS)]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut tables into many parts; the real sizes would put these into one."""
    monkeypatch.setattr(store, "SPOOL_ROWS", 61)
    monkeypatch.setattr(store, "_ROWS_EACH", 70)


@pytest.fixture
def table(tmp_path: Path) -> tuple[torch.Tensor, torch.Tensor, Path]:
    x, y = make_records(ROWS)
    x[1], y[1] = x[0], y[0]  # equal records, which share a batch
    write_files(tmp_path / "table", x, y, person=OWNERS, key=IDS)
    return x, y, tmp_path / "table"


FEATURES = [f"f{number}" for number in range(WIDTH)]


def _files(path: Path, **columns: Any) -> hf.Dataset:
    return hf.Dataset.parquet(path, label="y", columns=FEATURES, **columns)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = {
    "one batch": ({}, {}, {}),
    "batches": ({"batches": 3}, {}, {}),
    "remove": ({}, {"neighbours": "remove"}, {}),
    "replace": ({"batch_size": None}, {"neighbours": "replace"}, {}),
    "ids": ({"batches": 3}, {"ids": IDS}, {"id": "key"}),
    "replace with ids": ({"batches": 2}, {"neighbours": "replace", "ids": IDS}, {"id": "key"}),
    "persons": ({"batches": 2}, {"persons": OWNERS}, {"person": "person"}),
    "few per person": (
        {},
        {"persons": OWNERS, "max_records_per_person": 2},
        {"person": "person"},
    ),
    "public": ({}, {"public": make_records(40, seed=9)}, {}),
    "sparse grid": ({}, {"distances": [2, 5]}, {}),
}


def _in_files(
    path: Path, options: dict[str, Any], columns: dict[str, str], **more: Any
) -> tuple[hf.Dataset, dict[str, Any]]:
    """Return the records of the files, and the options that do not concern records."""
    own = ("ids", "persons", "max_records_per_person")
    kept = {name: each for name, each in options.items() if name not in own}
    most = {name: options[name] for name in own[2:] if name in options}
    return _files(path, **columns, **most, **more), kept


@pytest.mark.parametrize("case", CASES)
def test_networks(table: tuple[torch.Tensor, torch.Tensor, Path], case: str) -> None:
    x, y, path = table
    settings, options, columns = CASES[case]
    recipe = hf.Recipe(**{"epochs": 2, "batch_size": 170, "clip": 0.1, "momentum": 0.5, **settings})
    more = {"max_distance": 4} if "distances" not in options else {}
    in_memory = hf.train(network(), x, y, recipe, **more, **options, **QUIET)
    records, kept = _in_files(path, options, columns)
    in_files = hf.train(network(), records, recipe, **more, **kept, **QUIET)
    require_same_bits(in_memory, in_files)


@pytest.mark.parametrize("case", ["one batch", "ids", "few per person"])
def test_ensembles_of_networks(table: tuple[torch.Tensor, torch.Tensor, Path], case: str) -> None:
    x, y, path = table
    settings, options, columns = CASES[case]
    recipe = hf.Recipe(**{"batch_size": 60, "clip": 0.1, **settings})
    shared = {"members": 3, "max_distance": 3, **QUIET}
    in_memory = hf.train_ensemble(network, x, y, recipe, **shared, **options)
    records, kept = _in_files(path, options, columns)
    require_same_bits(in_memory, hf.train_ensemble(network, records, recipe, **shared, **kept))


HEAD_CASES = [case for case in CASES if case not in ("remove", "public", "sparse grid")]


@pytest.mark.parametrize(
    ("case", "members"),
    # An ensemble under 'replace' needs ids.
    [*((case, 1) for case in HEAD_CASES), *((case, 3) for case in HEAD_CASES if case != "replace")],
)
def test_heads(table: tuple[torch.Tensor, torch.Tensor, Path], case: str, members: int) -> None:
    x, y, path = table
    settings, options, columns = CASES[case]
    recipe = hf.LinearRecipe(**{"batch_size": 170, "travel": 9.0, "clip": 0.5, **settings})
    shared = {"members": members, **QUIET}
    in_memory = hf.train_linear(x, y, recipe, classes=2, **shared, **options)
    records, kept = _in_files(path, options, columns, classes=2)
    in_files = hf.train_linear(records, recipe, **shared, **kept)
    require_same_bits(in_memory, in_files)


def test_heads_of_several_classes_with_encoder_and_offset(tmp_path: Path) -> None:
    x, _ = make_records(ROWS)
    y = torch.arange(ROWS) % 3
    write_files(tmp_path / "table", x, [("a", "b", "c")[int(each)] for each in y])
    torch.manual_seed(1)
    encoder, offset = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh()), nn.Linear(WIDTH, 3)
    recipe = hf.LinearRecipe(batch_size=300, travel=9.0, clip=0.5)
    shared: dict[str, Any] = {"encoder": encoder, "offset": offset}
    names = [("a", "b", "c")[int(each)] for each in y]
    for multiclass in ("pairs", "softmax"):
        in_memory = hf.train_linear(
            x, names, recipe, classes=["a", "b", "c"], multiclass=multiclass, **shared, **QUIET
        )
        records = _files(tmp_path / "table", classes=["a", "b", "c"])
        in_files = hf.train_linear(records, recipe, multiclass=multiclass, **shared, **QUIET)
        require_same_bits(in_memory, in_files)


class _Scaled(nn.Module):
    """A layer of the user's own."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.sin(rows)


def test_frozen_layers_in_front(table: tuple[torch.Tensor, torch.Tensor, Path]) -> None:
    x, y, path = table
    recipe = hf.Recipe(batch_size=ROWS, clip=0.1)
    model = nn.Sequential(_Scaled(), network())
    in_memory = hf.train(model, x, y, recipe, max_distance=2, **QUIET)
    require_same_bits(in_memory, hf.train(model, _files(path), recipe, max_distance=2, **QUIET))


SCHEMA = """\
classes = ["no", "yes"]
[columns.f0]
range = [-2, 2]
[columns.f1]
range = [-2, 2]
missing = "flag"
[columns.colour]
categories = ["red", "blue"]
other = true
"""


@pytest.fixture
def rules(tmp_path: Path) -> hf.Preprocessing:
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return hf.Preprocessing.schema(tmp_path / "schema.toml")


def _with_colours(count: int, seed: int = 0) -> dict[str, list[Any]]:
    x, y = make_records(count, seed)
    x = torch.tanh(x)
    chance = np.random.default_rng(seed)
    return {
        "f0": x[:, 0].double().tolist(),
        "f1": [None if value > 0.5 else value for value in x[:, 1].double().tolist()],
        "colour": chance.choice(["red", "blue", "green"], count).tolist(),
        "answer": ["yes" if each else "no" for each in y],
    }


@pytest.mark.parametrize("whitened", [False, True])
def test_a_schema_and_whitening(tmp_path: Path, rules: hf.Preprocessing, whitened: bool) -> None:
    table = _with_colours(ROWS)
    parquet.write_table(pa.table(table), tmp_path / "records.parquet", row_group_size=100)
    if whitened:
        rules = rules.whitened(pa.table(_with_colours(200, seed=3)))
    path = tmp_path / "records.parquet"
    records = hf.Dataset.parquet(path, label="answer", preprocessing=rules)
    y = rules.labels(table["answer"])
    recipe = hf.LinearRecipe(batch_size=ROWS, travel=9.0)
    shared: dict[str, Any] = {"preprocessing": rules, **QUIET}
    require_same_bits(
        hf.train_linear(pa.table(table), y, recipe, **shared),
        hf.train_linear(records, recipe, **QUIET),
    )
    torch.manual_seed(0)
    model, recipe = nn.Linear(rules.width or 0, 2), hf.Recipe(batch_size=ROWS, batches=2)
    require_same_bits(
        hf.train(model, pa.table(table), y, recipe, max_distance=3, **shared),
        hf.train(model, records, recipe, max_distance=3, **QUIET),
    )


def test_whitening_that_was_fitted_on_the_records_is_refused(
    tmp_path: Path, rules: hf.Preprocessing
) -> None:
    table = pa.table(_with_colours(ROWS))
    parquet.write_table(table, tmp_path / "records.parquet")
    rules = rules.whitened(table.slice(0, 100))
    path = tmp_path / "records.parquet"
    records = hf.Dataset.parquet(path, label="answer", preprocessing=rules)
    with pytest.raises(hf.errors.InvalidInput, match="among the rows that whitening was fitted on"):
        hf.train_linear(records, hf.LinearRecipe(batch_size=ROWS), **QUIET)


def test_equal_ids_are_refused_however_far_apart(
    tmp_path: Path, table: tuple[torch.Tensor, torch.Tensor, Path]
) -> None:
    x, y, _ = table
    write_files(tmp_path / "twice", x, y, key=[*IDS[:-1], IDS[3]])
    records = _files(tmp_path / "twice", id="key", classes=2)
    with pytest.raises(hf.errors.InvalidInput, match="row 500: 'id-3' is also the id of row 4"):
        hf.train(network(), records, hf.Recipe(batch_size=ROWS), max_distance=1, **QUIET)
    with pytest.raises(hf.errors.InvalidInput, match="row 500: 'id-3' is also the id of row 4"):
        hf.train_linear(records, hf.LinearRecipe(batch_size=ROWS), **QUIET)


def test_owners_that_are_numbers_in_one_file_and_texts_in_another_are_refused(
    tmp_path: Path,
) -> None:
    """The types of all files must be the same; a missing owner is refused like in memory."""
    x, y = make_records(10)
    write_files(tmp_path / "table", x, y, files=1, person=np.arange(10))
    other = pa.table({f"f{n}": x[:, n].numpy() for n in range(WIDTH)})
    other = other.append_column("person", pa.array([str(n) for n in range(10)]))
    parquet.write_table(other.append_column("y", pa.array(y.numpy())), tmp_path / "table/z.parquet")
    with pytest.raises(hf.errors.InvalidInput, match="expected the same names and types"):
        _files(tmp_path / "table", person="person")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "none"}, "0 columns named 'none'; expected one"),
        ({"id": "y"}, "cannot also be the id or owner"),
        ({"columns": ["f0", "none"]}, "0 columns named 'none'"),
    ],
)
def test_columns_that_are_not_there_are_refused(
    table: tuple[torch.Tensor, torch.Tensor, Path], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(hf.errors.InvalidInput, match=message):
        hf.Dataset.parquet(table[2], **{"label": "y", **change})


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(hf.errors.InvalidInput, match="expected a .parquet file, or a folder"):
        hf.Dataset.parquet(tmp_path, label="y")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(hf.errors.InvalidInput, match="bad.parquet: not a readable table"):
        hf.Dataset.parquet(tmp_path, label="y")


def _train(path: Path) -> hf.Certified:
    recipe, records = hf.Recipe(batch_size=ROWS), hf.Dataset.parquet(path, label="y")
    return hf.train(network(), records, recipe, max_distance=1, **QUIET)


def test_values_that_cannot_be_used_are_refused_with_their_place(tmp_path: Path) -> None:
    x, y = make_records(200)
    spoiled = x.clone()
    spoiled[150, 2] = float("nan")
    write_files(tmp_path / "nan", spoiled, y, files=1)
    with pytest.raises(hf.errors.InvalidInput, match=r"to 183 holds NaN .*row 29, column 3"):
        _train(tmp_path / "nan")
    write_files(tmp_path / "label", x, torch.where(torch.arange(200) == 70, 5, y))
    with pytest.raises(hf.errors.InvalidInput, match=r"labels\[\d+\] = 5"):
        _train(tmp_path / "label")
    write_files(tmp_path / "text", x, y, colour=["red"] * 200)
    with pytest.raises(hf.errors.InvalidInput, match="'colour': holds string, not numbers"):
        _train(tmp_path / "text")
    empty = pa.table({"f0": pa.array([], pa.float32()), "y": []})
    parquet.write_table(empty, tmp_path / "0.parquet")
    with pytest.raises(hf.errors.InvalidInput, match="holds no records"):
        _train(tmp_path / "0.parquet")


def test_labels_ids_and_persons_belong_to_the_files(
    table: tuple[torch.Tensor, torch.Tensor, Path],
) -> None:
    _, y, path = table
    recipe = hf.Recipe(batch_size=ROWS)
    with pytest.raises(hf.errors.InvalidInput, match="y: the records are an hf.Dataset"):
        hf.train(network(), _files(path), y, recipe, **QUIET)
    with pytest.raises(hf.errors.InvalidInput, match="ids: .* name them there"):
        hf.train(network(), _files(path), recipe, ids=IDS, **QUIET)
    with pytest.raises(hf.errors.InvalidInput, match="y, classes: .* name them there"):
        hf.train_linear(_files(path), y, hf.LinearRecipe(batch_size=ROWS), classes=2, **QUIET)
    batches = hf.Recipe(batch_size=100, batches=2)
    with pytest.raises(hf.errors.InvalidInput, match="under 'replace' needs ids"):
        hf.train(network(), _files(path), batches, neighbours="replace", **QUIET)


def test_a_checkpoint_resumes(
    table: tuple[torch.Tensor, torch.Tensor, Path], tmp_path: Path
) -> None:
    x, y, path = table
    recipe, file = hf.Recipe(epochs=3, batch_size=ROWS), tmp_path / "checkpoint"
    options: dict[str, Any] = {"max_distance": 2, "checkpoint": file, **QUIET}
    first = hf.train(network(), _files(path), recipe, **options)
    again = hf.train(network(), _files(path), recipe, **options)
    require_same_bits(first, again)
    changed = x.clone()
    changed[7, 0] += 1.0
    write_files(path, changed, y, person=OWNERS, key=IDS)
    with pytest.raises(hf.errors.DamagedFile, match="belongs to another model"):
        hf.train(network(), _files(path), recipe, **options)


def test_a_full_disk_is_reported(
    table: tuple[torch.Tensor, torch.Tensor, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "pwrite", full)
    recipe = hf.Recipe(batch_size=ROWS)
    with pytest.raises(hf.errors.InvalidInput, match="No space left.*TMPDIR"):
        hf.train(network(), _files(table[2]), recipe, **QUIET)


def test_a_part_in_which_a_member_has_no_record(tmp_path: Path) -> None:
    """One record more must not decide between a model and an error."""
    x, y = make_records(62)  # the second part has one record
    write_files(tmp_path / "table", x, y, files=1)
    recipe, shared = hf.Recipe(batch_size=20), {"members": 3, "max_distance": 2, **QUIET}
    in_files = hf.train_ensemble(network, _files(tmp_path / "table"), recipe, **shared)
    require_same_bits(hf.train_ensemble(network, x, y, recipe, **shared), in_files)


def test_records_that_come_or_go_while_files_are_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_module, "_stamp", lambda file: (0,))
    x, y = make_records(200)
    write_files(tmp_path / "table", x, y, files=1)
    records = _files(tmp_path / "table", classes=2)
    write_files(tmp_path / "table", x[:90], y[:90], files=1)
    message = "200 records when it was opened, and 90 when it was read"
    with pytest.raises(hf.errors.InvalidInput, match=message):
        hf.train(network(), records, hf.Recipe(batch_size=200), max_distance=1, **QUIET)
    with pytest.raises(hf.errors.InvalidInput, match=message):
        hf.train_linear(records, hf.LinearRecipe(batch_size=200), **QUIET)


def test_a_folder_holds_its_files_and_nothing_else(tmp_path: Path) -> None:
    x, y = make_records(30)
    folder = tmp_path / "table"
    write_files(folder, x, y, files=1)
    (folder / ".part-0.parquet").write_bytes((folder / "part-0.parquet").read_bytes())
    (folder / "_SUCCESS").touch()
    assert hf.Dataset.parquet(folder, label="y").count == 30
    (folder / "twice.parquet").symlink_to(folder / "part-0.parquet")
    with pytest.raises(hf.errors.InvalidInput, match="two of its files are the same"):
        hf.Dataset.parquet(folder, label="y")
    (folder / "twice.parquet").unlink()
    for name in ("year=2020", "notes.txt", "more.PARQUET"):
        (folder / name).mkdir()
        with pytest.raises(hf.errors.InvalidInput, match="expected .parquet files alone"):
            hf.Dataset.parquet(folder, label="y")
        (folder / name).rmdir()


def test_columns_of_a_schema_and_of_whole_numbers(tmp_path: Path, rules: hf.Preprocessing) -> None:
    x, y = make_records(30)
    write_files(tmp_path / "table", x, y, files=1)
    recipe = hf.LinearRecipe(batch_size=30)
    records = hf.Dataset.parquet(tmp_path / "table", label="y", preprocessing=rules)
    with pytest.raises(hf.errors.InvalidInput, match="0 columns named 'colour'"):
        hf.train_linear(records, recipe, **QUIET)
    with pytest.raises(hf.errors.InvalidInput, match="column 'y' is used twice"):
        hf.Dataset.parquet(tmp_path / "table", label="y", columns=["f0", "y"])
    # A whole number is rounded once, to the type of the model.
    numbers = torch.tensor([[2**60 + 2**36 + 1, 1], [3, 2], [5, 7], [2**53 + 1, 9]])
    whole, labels = pa.table(dict(zip("ab", numbers.T.numpy(), strict=True))), [True, False] * 2
    parquet.write_table(whole.append_column("y", pa.array(labels)), tmp_path / "whole.parquet")
    records = hf.Dataset.parquet(tmp_path / "whole.parquet", label="y")
    model, recipe = nn.Linear(2, 2), hf.Recipe(batch_size=4, batches=2)
    options: dict[str, Any] = {"max_distance": 2, **QUIET}
    in_memory = hf.train(model, numbers, torch.tensor(labels), recipe, **options)
    require_same_bits(in_memory, hf.train(model, records, recipe, **options))


def test_places_are_named_in_refusals_of_owners_and_names(tmp_path: Path) -> None:
    x, y = make_records(200)
    owners = [f"p{number}" for number in range(200)]
    owners[150] = "NA"
    names = ["b" if each else "a" for each in y]
    names[150] = "c"
    write_files(tmp_path / "owners", x, y, files=1, person=owners)
    write_files(tmp_path / "names", x, names, files=1)
    recipe, place = hf.LinearRecipe(batch_size=200), "rows 123 to 183, "
    with pytest.raises(hf.errors.InvalidInput, match=place + r"persons\[28\] = 'NA'"):
        hf.train_linear(_files(tmp_path / "owners", person="person", classes=2), recipe, **QUIET)
    with pytest.raises(hf.errors.InvalidInput, match=place + r"labels, row 29: 'c'"):
        hf.train_linear(_files(tmp_path / "names", classes=["a", "b"]), recipe, **QUIET)
