"""Tables: CSV and Parquet files read by a schema, labels of a table, and drafts of schemas."""

from __future__ import annotations

import csv as strict_csv
import io
import json
import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..arrays import check_labels
from ..errors import InvalidInput
from .columns import MISSING_WORDS, Category, as_number, category_name
from .rules import Preprocessing


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


def read_records(path: Path, preprocessing: Preprocessing | None, *, empty: bool = False) -> Any:
    """Read a table from a .csv or .parquet file.

    Args:
        path: The file.
        preprocessing: The schema: its columns of numbers are read as such, all others as text.
        empty: Whether a table without rows is accepted.

    Raises:
        InvalidInput: If the file cannot be read, lacks a column, or has no rows.
    """
    table = read_table(path, _number_columns(preprocessing))
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
    table = read_csv(content, path, _number_columns(preprocessing), max_columns)
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


def _number_columns(preprocessing: Preprocessing | None) -> list[str]:
    """Return the columns that are read as numbers."""
    columns = () if preprocessing is None else preprocessing.columns
    return [entry.name for entry in columns if not isinstance(entry, Category)]


def _require_rows(table: Any, path: Path) -> Any:
    if not len(table):
        raise InvalidInput(f"{path}: holds no rows")
    return table


_MOST_CATEGORIES = 50
_FEW_VALUES = 10
_SMALLEST, _LARGEST = 1e-290, 1e290
_SKEWED = 1.2  # mean over median, from which a logarithmic scale is drafted


def draft_schema(table: Any, label: str, source: str) -> str:
    """Return the text of a schema for a table with *public* rows.

    Ranges are rounded outwards from the middle 99% of the numbers. Columns that look like ids, or
    have too many categories, are left out.

    Args:
        table: The rows, as a pyarrow table. They must be public: the draft depends on them.
        label: The column of labels.
        source: The name of the table, for the comment and for errors.

    Raises:
        InvalidInput: If there is no such column, or it has fewer than two labels.

    Example:
        >>> import holdfast as hf, pyarrow as pa
        >>> rows = pa.table({"sex": [1, 2, 2], "ill": ["no", "no", "yes"]})
        >>> hf.preprocessing.draft_schema(rows, "ill", "public.csv").splitlines()[-2:]
        ['[columns.sex]', 'range = [1, 2]']
    """
    if label not in table.column_names:
        raise InvalidInput(
            f"{source}: no column {label!r}; it has {', '.join(map(repr, table.column_names))}"
        )
    twice = next((name for name in table.column_names if table.column_names.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f"{source}: more than one column {twice!r}; give each its own name")
    labels = table[label].to_pylist()
    classes = sorted({category_name(value) for value in labels if not _is_missing(value)} - {""})
    if len(classes) < 2:
        raise InvalidInput(
            f"{source}, column {label!r}: {len(classes)} label in {len(table)} rows; expected at "
            "least two: give public rows of every class"
        )
    parts = [
        f"# Drafted from {source}, whose rows must be public. Check every line: the guarantee\n"
        "# takes ranges, categories and classes as known without the private records.\n"
        f"classes = {_words(classes)}\n"
    ]
    for name in table.column_names:
        if name != label:
            parts.append(_column(name, table[name].to_pylist()))
    if not any(part.startswith("[columns.") for part in parts):
        raise InvalidInput(f"{source}: no column is of use for a schema\n{''.join(parts[1:])}")
    return "\n".join(parts)


def _column(name: str, values: Sequence[Any]) -> str:
    """Return the entry of one column."""
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)
    numbers = _numbers(values)
    missing = MISSING_WORDS if numbers is not None else ("",)
    present = [value for value in values if not (_is_missing(value) or value in missing)]
    reason = _why_left_out(values, present, numbers)
    if reason is not None:
        return f"# {key} is left out: {reason}\n"
    distinct = sorted({category_name(value) for value in present})
    lines = [f"[columns.{key}]"]
    if numbers is None:
        lines += [f"categories = {_words(distinct)}", "other = true"]
    else:
        lines += _range(numbers)
        if 2 < len(distinct) <= _FEW_VALUES and (numbers == np.round(numbers)).all():
            few = _words(distinct)
            lines.append(f"# if these numbers are codes, write instead: categories = {few}")
    if len(present) < len(values):
        lines.append('missing = "flag"')
    return "\n".join(lines) + "\n"


def _why_left_out(
    values: Sequence[Any], present: Sequence[Any], numbers: np.ndarray[Any, Any] | None
) -> str | None:
    """Return why a column is of no use for a schema, or None."""
    if not present:
        return "it is empty"
    if not all(isinstance(value, bool | int | float | Decimal | str) for value in present):
        return "it holds neither numbers nor words"
    distinct = {category_name(value) for value in present}
    if len(distinct) == 1 or (numbers is not None and numbers.min() == numbers.max()):
        return f"it has a single value, {_quoted(min(distinct))}"
    if all(re.fullmatch(r"-?\d+(,\d+)?", str(value)) for value in present) and numbers is None:
        return "its decimals are written with commas; write them with points"
    whole = numbers is None or bool((numbers == np.round(numbers)).all())
    if len(distinct) == len(values) > _MOST_CATEGORIES and whole:
        return "every row has another value, as in a column of ids"
    if numbers is None and len(distinct) > _MOST_CATEGORIES:
        return f"it has {len(distinct)} different words"
    return None


def _range(numbers: np.ndarray[Any, np.dtype[np.float64]]) -> list[str]:
    low, high = np.quantile(numbers, [0.005, 0.995])
    if low == high:
        low, high = numbers.min(), numbers.max()
    low, high = _rounded(low, math.floor), _rounded(high, math.ceil)
    if not low < high:  # all of them are as good as one number
        low, high = low - 1.0, high + 1.0
    lines = [f"range = [{low:.12g}, {high:.12g}]"]
    middle = float(np.median(numbers)) - low
    if low >= 0 and 10 < high < _LARGEST and float(numbers.mean()) - low > _SKEWED * middle:
        lines.append("log = true")
    return lines


def _rounded(value: float, towards: Any) -> float:
    """Return a number with two digits, rounded up or down; very small ones become 0."""
    if abs(value) < _SMALLEST:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    rounded = float(towards(value / unit) * unit)
    return rounded if math.isfinite(rounded) else value


def _numbers(values: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Return the values that are not missing as numbers, or None if one of them is not a number."""
    try:
        numbers = np.array(
            [
                as_number(value)
                for value in values
                if not (_is_missing(value) or value in MISSING_WORDS)
            ]
        )
    except (TypeError, ValueError, OverflowError):
        return None
    return numbers if len(numbers) and np.isfinite(numbers).all() else None


def _is_missing(value: Any) -> bool:
    return value is None or value != value


def _words(words: Sequence[str]) -> str:
    return "[" + ", ".join(map(_quoted, words)) + "]"


def _quoted(word: str) -> str:
    """Return a string of TOML, a JSON string with DEL escaped."""
    return json.dumps(word, ensure_ascii=False).replace("\x7f", "\\u007f")
