"""Readers of files: CSV and Parquet tables, and archives in a data folder.

The folder is given (`--data`) or named by the environment variable HOLDFAST_DATA.
"""

from __future__ import annotations

import csv as strict_csv
import hashlib
import io
import os
import re
import shutil
import urllib.request
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ..errors import DamagedFile, InvalidInput

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


MISSING_WORDS = ("", "NA", "N/A", "NaN", "nan", "NULL", "null")
"""Texts that mark a missing number in a column of numbers."""


def read_table(path: Path, numbers: Iterable[str] = ()) -> Any:
    """Return the pyarrow table in a CSV or Parquet file.

    In a CSV, the columns `numbers` are read as float64 and all others as strings, so that "01"
    stays "01". Types are never guessed from other rows: a cell means the same in every file.
    """
    import pyarrow as pa
    from pyarrow import parquet

    if not path.is_file():
        raise InvalidInput(f"{path}: no such file; expected a table, .csv or .parquet")
    try:
        if path.suffix == ".parquet":
            return parquet.read_table(path, use_threads=False, pre_buffer=False)
        if path.suffix == ".csv":
            return read_csv(path.read_bytes(), path, numbers)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"{path}: not a readable table ({error})") from error
    raise InvalidInput(f"{path}: expected a table with the ending .csv or .parquet")


def read_csv(
    content: bytes, path: Path, numbers: Iterable[str] = (), max_columns: int | None = None
) -> Any:
    """Return the table in the bytes of a CSV file; `path` is used in error messages."""
    import pyarrow as pa

    try:
        return _read_csv(content, path, set(numbers), max_columns)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InvalidInput(_about_csv(path, content, str(error))) from error


def _about_csv(path: Path, content: bytes, error: str) -> str:
    """Return the message for an error of the reader, with the column's name and the row from 1."""
    cell = re.search(r"column #(\d+): Row #(\d+): .*invalid value '(.*)'", error)
    if cell is None:
        return f"{path}: not a readable table ({error})"
    names = _header(content, _delimiter(content))
    text = (
        f"{path}, column {names[int(cell[1])]!r}, row {int(cell[2]) - 1}: {cell[3]!r} is not a "
        "number; "
    )
    if re.fullmatch(r"-?\d+,(?!\d{3}$)\d+", cell[3]):
        return text + f"write decimals with a point: {cell[3].replace(',', '.')}"
    return text + "list the categories in the schema if it is text"


def _read_csv(content: bytes, path: Path, numbers: set[str], max_columns: int | None) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    delimiter = _delimiter(content)
    lines = _cells_per_row(content, path, delimiter)
    if lines and max_columns is not None and lines[0] > max_columns:
        raise InvalidInput(f"{path}: {lines[0]:,} columns; expected at most {max_columns:,}")
    one_column = bool(lines) and lines[0] < 2
    rows = [cells for cells in lines[1:] if cells or one_column]
    for row, cells in enumerate(rows, 1):
        if cells not in (lines[0], 0):
            raise InvalidInput(
                f"{path}, row {row}: {cells} cells; expected {lines[0]}, as in the header"
            )
    names = _header(content, delimiter) if lines else []
    types = {name: pa.float64() if name in numbers else pa.string() for name in names}
    # A quoted line break is part of its cell, even at the end of one of the reader's blocks.
    # An empty line is a row only if there is one column.
    parse = csv.ParseOptions(
        delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=not one_column
    )
    convert = csv.ConvertOptions(
        strings_can_be_null=False, null_values=list(MISSING_WORDS), column_types=types
    )
    # Without threads: one that is still running when the process exits aborts it.
    table = csv.read_csv(
        io.BytesIO(content),
        read_options=csv.ReadOptions(use_threads=False),
        parse_options=parse,
        convert_options=convert,
    )
    if len(table) != len(rows):
        raise InvalidInput(
            f"{path}: not a readable table "
            f"({len(rows)} rows by its quotation marks, {len(table)} by its lines)"
        )
    return table


def _delimiter(content: bytes) -> str:
    """Return what separates the columns: a semicolon if the header has semicolons and no comma.

    The names of columns are public, so this reveals nothing about a record.
    """
    header = re.split(rb"[\r\n]", content, maxsplit=1)[0]
    return ";" if b";" in header and b"," not in header else ","


def _header(content: bytes, delimiter: str) -> list[str]:
    """Return the names of the columns, with quoted line breaks as they are."""
    text = io.StringIO(content.decode("utf-8-sig"), newline="")
    return next(strict_csv.reader(text, delimiter=delimiter, strict=True), [])


def _cells_per_row(content: bytes, path: Path, delimiter: str) -> list[int]:
    """Return how many cells each row has, with strict parsing of quotation marks.

    Otherwise, a stray quotation mark could swallow all lines up to the next one.
    """
    try:
        return [
            len(cells)
            for cells in strict_csv.reader(
                io.StringIO(content.decode("utf-8-sig"), newline=""),
                delimiter=delimiter,
                strict=True,
            )
        ]
    except strict_csv.Error as error:
        raise InvalidInput(f"{path}: not a readable table (quotation marks: {error})") from error


def column(table: Any, name: str, path: Path) -> list[Any]:
    """Return a column's values, or raise if there is not exactly one column of that name."""
    if table.column_names.count(name) != 1:
        many = "more than one" if name in table.column_names else "no"
        raise InvalidInput(
            f"{path}: {many} column {name!r}; it has {', '.join(map(repr, table.column_names))}"
        )
    values: list[Any] = table[name].to_pylist()
    return values


def escape_formula(cell: Any) -> Any:
    """Return a cell that no spreadsheet treats as a formula, with an apostrophe if necessary."""
    if not isinstance(cell, str) or _NUMBER.fullmatch(cell):
        return cell
    if not cell.startswith(("\t", "\r", "\n")) and not cell.lstrip().startswith(_FORMULA):
        return cell
    return "'" + cell


_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # noqa: RUF001 (some programs accept these)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
