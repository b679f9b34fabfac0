"""`holdfast train` on a folder of Parquet files gives the model of the same rows in a CSV."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app
from holdfast.records import PARTS_MEMORY

from .parts import require_same_bits

pytestmark = pytest.mark.filterwarnings("ignore::holdfast.errors.HoldfastWarning")
SCHEMA = """\
classes = ["home", "stays"]
[columns.age]
range = [18, 100]
[columns.ward]
categories = ["surgery", "stroke"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    chance = np.random.default_rng(0)
    stays = chance.integers(0, 2, 600)
    table = pa.table(
        {
            "age": (50 + 20 * stays + chance.normal(0, 5, 600)).round(),
            "ward": chance.choice(["surgery", "stroke"], 600),
            "patient": [f"p{number % 250}" for number in range(600)],
            "number": np.arange(600),
            "outcome": np.where(stays, "stays", "home"),
        }
    )
    (tmp_path / "table").mkdir()
    for part in range(3):
        parquet.write_table(table.slice(200 * part, 200), tmp_path / f"table/{part}.parquet")
    csv.write_csv(table, tmp_path / "table.csv")
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


def _train(table: str, out: str, *options: str) -> dict[str, Any]:
    shared = ["--label", "outcome", "--schema", "schema.toml", "--out", out, "--json"]
    result = CliRunner().invoke(app, ["train", table, *shared, *options])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize(
    "options",
    [
        ("--batch-size", "600"),
        ("--batch-size", "250", "--person", "patient"),
        ("--batch-size", "250", "--person", "patient", "--max-records-per-person", "1"),
        ("--batch-size", "200", "--members", "3"),
        ("--batch-size", "600", "--model", "mlp:4", "--max-distance", "3"),
        ("--batch-size", "200", "--model", "mlp:4", "--max-distance", "3", "--members", "3"),
        ("--neighbours", "replace", "--model", "linear-box", "--max-distance", "3"),
        ("--neighbours", "replace"),
    ],
    ids=" ".join,
)
def test_a_folder_and_a_csv_give_the_same_model(folder: Path, options: tuple[str, ...]) -> None:
    in_memory, in_files = _train("table.csv", "a", *options), _train("table", "b", *options)
    assert in_files["records"] == in_memory["records"] == 600
    assert in_files["recipe"] == in_memory["recipe"]
    require_same_bits(hf.load("a"), hf.load("b"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--engine", "dask", "--batch-size", "600"), "expected 'local' or 'ray'"),
        (("--batch-size", "600", "--id", "outcome"), "column 'outcome' is the label"),
        (("--batch-size", "600", "--id", "none"), "0 columns named 'none'"),
        (("--person", "patient", "--neighbours", "replace"), "--batch-size is missing: persons"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_refusals(folder: Path, options: tuple[str, ...], message: str) -> None:
    command = ["train", "table", "--label", "outcome", "--schema", "schema.toml", *options]
    result = CliRunner().invoke(app, command)
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())


def test_a_dry_run_counts_no_features_in_memory(folder: Path) -> None:
    found = _train("table", "c", "--batch-size", "600", "--dry-run")
    assert found["memory_bytes"] <= PARTS_MEMORY + 600 * 16 * 8 * 3
