"""Drafts of schemas: a schema worked out from public rows, for the owner to check and correct."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from ..errors import InvalidInput
from ..records.tables import MISSING_WORDS
from .columns import as_number, category_name

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
    """Return a string of TOML, which is one of JSON but for one character."""
    return json.dumps(word, ensure_ascii=False).replace("\x7f", "\\u007f")
