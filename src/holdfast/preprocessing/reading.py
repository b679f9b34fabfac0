"""Read tables according to a schema: numbers, texts and labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInput
from ..records import check_labels
from ..records.tables import column, read_csv, read_table
from .columns import Category
from .rules import Preprocessing


def read_records(path: Path, preprocessing: Preprocessing | None, *, empty: bool = False) -> Any:
    """Read a table from a .csv or .parquet file.

    Args:
        path: The file.
        preprocessing: The schema: its columns of numbers are read as such, all others as text.
        empty: Whether a table without rows is accepted.

    Raises:
        InvalidInput: If the file cannot be read, lacks a column, or has no rows.
    """
    table = read_table(path, _numbers(preprocessing))
    return table if empty else _require_rows(table, path)


def read_csv_bytes(
    content: bytes,
    source: str,
    preprocessing: Preprocessing | None,
    max_columns: int | None = None,
) -> Any:
    """Read a table of at least one row from the bytes of a CSV.

    Args:
        content: The bytes.
        source: What to call them in errors.
        preprocessing: The schema, as for `read_records`.
        max_columns: The most columns that are read, for a file from elsewhere; each takes memory,
            even if it is empty.

    Raises:
        InvalidInput: If the bytes are not a table, lack a column, or hold no rows.
    """
    path = Path(source)
    table = read_csv(content, path, _numbers(preprocessing), max_columns)
    return _require_rows(table, path)


def read_labels(
    table: Any, name: str, path: Path, preprocessing: Preprocessing | None, classes: int
) -> Tensor:
    """Return the label column of a table as class numbers.

    Args:
        table: What `read_records` returned.
        name: The column.
        path: The file, for errors.
        preprocessing: The schema; labels are names of its classes, or integers without them.
        classes: The number of classes.

    Returns:
        One int64 per row.

    Raises:
        InvalidInput: If a label is not one of the classes.
    """
    values = column(table, name, path)
    if preprocessing is not None and preprocessing.classes:
        return preprocessing.labels(values, f"{path}, column {name!r}")
    try:
        numbers = torch.tensor([int(value) for value in values])
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"{path}, column {name!r}: expected labels 0..{classes - 1} ({error}); "
            "name the classes in a schema"
        ) from None
    return check_labels(numbers, len(values), classes, f"{path}, column {name!r}")


def _numbers(preprocessing: Preprocessing | None) -> list[str]:
    """Return the columns that are read as numbers."""
    columns = () if preprocessing is None else preprocessing.columns
    return [entry.name for entry in columns if not isinstance(entry, Category)]


def _require_rows(table: Any, path: Path) -> Any:
    if not len(table):
        raise InvalidInput(f"{path}: holds no rows")
    return table
