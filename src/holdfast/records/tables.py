"""Tables from files: CSV or Parquet, with the columns that a schema names."""

from __future__ import annotations

import csv as strict_csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import InvalidInput

MISSING_WORDS = ("", "NA", "N/A", "NaN", "nan", "NULL", "null")
"""What a cell of text may hold in a column of numbers where a number is missing."""


def read_table(path: Path, numbers: Iterable[str] = (), texts: Iterable[str] = ()) -> Any:
    """A pyarrow table. In a CSV, the columns named are read as numbers or as they are written, so that "01" stays "01".

    Nothing is left to guessing by the other rows: a cell means the same in every file.
    """
    import pyarrow as pa
    from pyarrow import parquet

    if not path.is_file():
        raise InvalidInput(f"{path}: no such file; expected a table, .csv or .parquet")
    try:
        if path.suffix == ".parquet":
            return parquet.read_table(path)
        if path.suffix == ".csv":
            return read_csv(path.read_bytes(), path, numbers, texts)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"{path}: not a readable table ({error})") from error
    raise InvalidInput(f"{path}: expected a table with the ending .csv or .parquet")


def read_csv(content: bytes, path: Path, numbers: Iterable[str] = (), texts: Iterable[str] = ()) -> Any:
    """The table that a CSV's bytes hold; `path` says where they are from."""
    import pyarrow as pa

    try:
        return _read_csv(content, path, {name: pa.float64() for name in numbers} | {name: pa.string() for name in texts})
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: not a readable table ({error})") from error


def _read_csv(content: bytes, path: Path, types: dict[str, Any]) -> Any:
    from pyarrow import csv

    lines = _lines(content, path)
    one_column = bool(lines) and lines[0] < 2
    # A quoted line break is part of its cell, wherever the reader's blocks end. An empty line is a cell only if there is one column.
    parse = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=not one_column)
    convert = csv.ConvertOptions(strings_can_be_null=False, null_values=list(MISSING_WORDS), column_types=types)
    table = csv.read_csv(io.BytesIO(content), parse_options=parse, convert_options=convert)
    count = sum(1 for cells in lines[1:] if cells or one_column)
    if len(table) != count:
        raise InvalidInput(f"{path}: not a readable table ({count} rows by its quotation marks, {len(table)} by its lines)")
    return table


def _lines(content: bytes, path: Path) -> list[int]:
    """How many cells each line has, read strictly: a stray quotation mark could otherwise swallow the lines up to the next one."""
    try:
        return [len(cells) for cells in strict_csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)]
    except strict_csv.Error as error:
        raise InvalidInput(f"{path}: not a readable table (quotation marks: {error})") from error


def column(table: Any, name: str, path: Path) -> list[Any]:
    """A column's values."""
    if table.column_names.count(name) != 1:
        many = "more than one" if name in table.column_names else "no"
        raise InvalidInput(f"{path}: {many} column {name!r}; it has {', '.join(map(repr, table.column_names))}")
    values: list[Any] = table[name].to_pylist()
    return values
