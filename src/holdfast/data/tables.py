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
    from pyarrow import csv, parquet

    if not path.is_file():
        raise InvalidInput(f"{path}: no such file; expected a table, .csv or .parquet")
    try:
        if path.suffix == ".parquet":
            return parquet.read_table(path)
        if path.suffix == ".csv":
            types = {name: pa.float64() for name in numbers} | {name: pa.string() for name in texts}
            options = csv.ConvertOptions(strings_can_be_null=True, column_types=types)
            return csv.read_csv(path, convert_options=options)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"{path}: not a readable table ({error})") from error
    raise InvalidInput(f"{path}: expected a table with the ending .csv or .parquet")


def column(table: Any, name: str, path: Path) -> list[Any]:
    """A column's values."""
    if name not in table.column_names:
        raise InvalidInput(f"{path}: no column {name!r}; it has {', '.join(map(repr, table.column_names))}")
    values: list[Any] = table[name].to_pylist()
    return values
