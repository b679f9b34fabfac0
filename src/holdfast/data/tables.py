"""Tables from files: CSV or Parquet, with the columns that a schema names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import InvalidInput


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
            return _read_csv(path, {name: pa.float64() for name in numbers} | {name: pa.string() for name in texts})
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: not a readable table ({error})") from error
    raise InvalidInput(f"{path}: expected a table with the ending .csv or .parquet")


def _read_csv(path: Path, types: dict[str, Any]) -> Any:
    from pyarrow import csv

    content = path.read_bytes()
    if content.count(b'"') % 2:
        raise InvalidInput(f"{path}: not a readable table (a quotation mark is opened and not closed)")
    content.split(b"\n", 1)[0].decode("utf-8")  # the names of the columns
    one_column = b"," not in content.split(b"\n", 1)[0]
    # A quoted line break is part of its cell, wherever the reader's blocks end. An empty line is a cell only if there is one column.
    parse = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=not one_column)
    convert = csv.ConvertOptions(strings_can_be_null=False, column_types=types)
    return csv.read_csv(path, parse_options=parse, convert_options=convert)


def column(table: Any, name: str, path: Path) -> list[Any]:
    """A column's values."""
    if table.column_names.count(name) != 1:
        many = "more than one" if name in table.column_names else "no"
        raise InvalidInput(f"{path}: {many} column {name!r}; it has {', '.join(map(repr, table.column_names))}")
    values: list[Any] = table[name].to_pylist()
    return values
