"""Example files for the commands, and archives of the experiments in a data folder.

The folder is given (`--data`) or named by the environment variable HOLDFAST_DATA.

Each example is written as it would come from a database: train.csv, queries.csv and, for the real
tables, public.csv, with categories as text, missing values as empty cells and labels as words; and
a schema.toml that could be written without seeing a record.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.request
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ..checks import make_folder
from ..errors import DamagedFile, InvalidInput
from .demo import blobs

DATA_VARIABLE = "HOLDFAST_DATA"


class MissingData(InvalidInput):
    """Raised if data that an experiment needs is missing; the message says how to get it.

    Other problems with data raise other errors, so that they are not taken for missing data.
    """


def data_folder(given: Path | None) -> Path | None:
    """Return the given folder, or the one that HOLDFAST_DATA names, or None."""
    folder = (
        given
        if given is not None
        else (Path(os.environ[DATA_VARIABLE]) if os.environ.get(DATA_VARIABLE) else None)
    )
    if folder is not None and not folder.is_dir():
        raise InvalidInput(
            f"{folder}: no such folder; give the folder of data with --data, or set {DATA_VARIABLE}"
        )
    return folder


def find_file(folder: Path | None, names: Iterable[str], how: str) -> Path:
    """Return the first of the named files that exists, or raise MissingData.

    `how` says how to get the file and becomes part of the message.
    """
    listed = list(names)
    for name in listed:
        if folder is not None and (folder / name).is_file():
            return folder / name
    where = (
        "no folder of data was given (--data, or the environment variable HOLDFAST_DATA)"
        if folder is None
        else f"{folder} has no such file"
    )
    raise MissingData(f"{' or '.join(listed)}: {where}. {how}")


def read_archive(path: Path, keys: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Any]:
    """Return arrays of a numpy archive, without executing anything in it (no pickle).

    Arrays named in `optional` may be missing.
    """
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as archive:
            missing = sorted(set(keys) - set(archive.files))
            if missing:
                raise DamagedFile(f"{path}: has no {missing[0]!r}; expected {', '.join(keys)}")
            more = [key for key in optional if key in archive.files]
            return {key: archive[key] for key in [*keys, *more]}
    except (
        ValueError,
        TypeError,
        AttributeError,
        OSError,
        EOFError,
        BadZipFile,
        zlib.error,
    ) as error:
        raise DamagedFile(
            f"{path}: not a readable archive of numpy ({error}); download it again"
        ) from error


def download(url: str, path: Path, md5: str) -> Path:
    """Download a file to `path`, and keep it only if its MD5 is the expected one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        with urllib.request.urlopen(url, timeout=60) as source, part.open("wb") as target:
            shutil.copyfileobj(source, target)
        found = hashlib.md5(part.read_bytes(), usedforsecurity=False).hexdigest()
        if found != md5:
            raise DamagedFile(
                f"{url}: MD5 {found}, expected {md5}: not the expected file; try again later"
            )
        part.replace(path)
    except OSError as error:
        raise MissingData(
            f"{url}: cannot be downloaded ({error}); download it by hand and put it at {path}"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return path


_BLOB_COLUMNS = ("x1", "x2", "x1_squared", "x2_squared", "x1_cubed", "x2_cubed")
_CLOUDS = ("upper", "lower")
_TABLES = {"credit-default": "uci_credit_default.npz", "credit-scoring": "gmsc.npz"}
_KEPT = {"credit-default": 0.28, "credit-scoring": 0.07}
NAMES = ("blobs-far", "blobs-close", *_TABLES)

Parts = dict[str, dict[str, Any]]


def write_example(name: str, folder: Path, data: Path | None = None) -> dict[str, Path]:
    """Write the files of an example, and return their paths.

    `data` is the folder of the real tables; by default the environment variable HOLDFAST_DATA.
    """
    import pyarrow as pa
    from pyarrow import csv

    if name not in NAMES:
        raise InvalidInput(f"{name!r}: expected one of {', '.join(map(repr, NAMES))}")
    parts, schema = _blobs(name) if name.startswith("blobs") else _real(name, data)
    make_folder(folder)
    paths = {part: folder / f"{part}.csv" for part in parts}
    for part, columns in parts.items():
        csv.write_csv(pa.table(columns), paths[part])
    paths["schema"] = folder / "schema.toml"
    paths["schema"].write_text(schema)
    return paths


def _blobs(name: str) -> tuple[Parts, str]:
    data = blobs(name.removeprefix("blobs-"), 6250)
    parts = {}
    for part, x, y in (("train", data.x, data.y), ("queries", data.query_x, data.query_y)):
        columns = {
            "id": range(len(y)),
            **{column: x[:, i].numpy() for i, column in enumerate(_BLOB_COLUMNS)},
        }
        parts[part] = {**columns, "cloud": [_CLOUDS[label] for label in y.tolist()]}
    entries = "".join(f"\n[columns.{column}]\n" for column in _BLOB_COLUMNS)
    return (
        parts,
        f"# Numbers without a range are taken as they are.\nclasses = {list(_CLOUDS)}\n{entries}",
    )


def _real(name: str, data: Path | None) -> tuple[Parts, str]:
    """Return a real table, split for training (3/5), queries (1/5) and public data (1/5).

    The public part has no labels.
    """
    how = "Write it there with the arrays X, y and feature_names."
    archive = read_archive(
        find_file(data_folder(data), [f"tables/{_TABLES[name]}"], how), ["X", "y", "feature_names"]
    )
    columns, schema = _DECODE[name](
        dict(zip(archive["feature_names"].tolist(), archive["X"].T, strict=True))
    )
    columns["default"] = [("no", "yes")[label] for label in archive["y"].tolist()]
    draw = np.random.default_rng(0)
    # Most people pay. Keep all who do not, and a random sample of the others, about as many, that
    # is drawn at a public rate.
    kept = draw.random(len(archive["y"])) < np.where(archive["y"] == 1, 1.0, _KEPT[name])
    fifth = draw.integers(0, 5, len(archive["y"]))
    chosen = {"train": fifth < 3, "queries": fifth == 3, "public": fifth == 4}
    parts = {part: _rows(columns, np.flatnonzero(kept & rows)) for part, rows in chosen.items()}
    del parts["public"]["default"]
    return parts, f'classes = ["no", "yes"]\n{schema}'


def _rows(columns: dict[str, Any], rows: NDArray[np.int64]) -> dict[str, Any]:
    return {
        "id": rows.tolist(),
        **{name: [values[row] for row in rows.tolist()] for name, values in columns.items()},
    }


def _numbers(values: NDArray[np.float32]) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _words(values: NDArray[np.float32], words: dict[int, str]) -> list[str | None]:
    return [words.get(int(value)) for value in values]


def _credit_default(raw: dict[str, NDArray[np.float32]]) -> tuple[dict[str, Any], str]:
    """Return credit card clients of Taiwan, 2005 (UCI), and a schema.

    Codes that are not explained in the documentation of the data count as missing.
    """
    words = {
        "SEX": {1: "male", 2: "female"},
        "EDUCATION": {1: "graduate school", 2: "university", 3: "high school", 4: "other"},
        "MARRIAGE": {1: "married", 2: "single", 3: "other"},
    }
    columns: dict[str, Any] = {}
    schema = ""
    for name, values in raw.items():
        if name in words:
            columns[name] = _words(values, words[name])
            schema += (
                f'\n[columns.{name}]\ncategories = {list(words[name].values())}\nmissing = "flag"\n'
            )
        else:
            columns[name] = _numbers(values)
            schema += f"\n[columns.{name}]\nrange = {_range_of(name)}\n"
    return columns, schema


def _range_of(name: str) -> list[int]:
    ranges = {
        "LIMIT_BAL": [0, 500_000],
        "AGE": [20, 70],
        "BILL": [0, 200_000],
        "PAY_AMT": [0, 20_000],
        "PAY": [-2, 4],
    }
    return next(ends for start, ends in ranges.items() if name.startswith(start))


def _credit_scoring(raw: dict[str, NDArray[np.float32]]) -> tuple[dict[str, Any], str]:
    """Return "Give Me Some Credit" (income and dependants are often missing), and a schema."""
    rules = {
        "RevolvingUtilizationOfUnsecuredLines": "range = [0, 1.5]",
        "age": "range = [20, 90]",
        "NumberOfTime30-59DaysPastDueNotWorse": "range = [0, 4]",
        "DebtRatio": "range = [0, 5000]\nlog = true",
        "MonthlyIncome": 'range = [0, 25000]\nlog = true\nmissing = "flag"',
        "NumberOfOpenCreditLinesAndLoans": "range = [0, 25]",
        "NumberOfTimes90DaysLate": "range = [0, 3]",
        "NumberRealEstateLoansOrLines": "range = [0, 5]",
        "NumberOfTime60-89DaysPastDueNotWorse": "range = [0, 3]",
    }
    counts = ["0", "1", "2", "3", "4"]
    columns: dict[str, Any] = {name: _numbers(raw[name]) for name in rules}
    columns["NumberOfDependents"] = [
        None if np.isnan(value) else str(int(value)) for value in raw["NumberOfDependents"]
    ]
    schema = "".join(f"\n[columns.{name}]\n{rule}\n" for name, rule in rules.items())
    return (
        columns,
        schema
        + (
            f"\n[columns.NumberOfDependents]\ncategories = {counts}\nother = true\nmissing = "
            '"flag"\n'
        ),
    )


_Decode = Callable[[dict[str, NDArray[np.float32]]], tuple[dict[str, Any], str]]
_DECODE: dict[str, _Decode] = {"credit-default": _credit_default, "credit-scoring": _credit_scoring}
