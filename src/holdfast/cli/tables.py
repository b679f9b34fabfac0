"""Functions with which the commands read tables and models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInput
from ..models.certified import Certified
from ..models.ensemble import CertifiedEnsemble
from ..preprocessing import Preprocessing
from ..preprocessing.columns import Category
from ..records import check_labels
from ..records.tables import column, read_csv, read_table


def records(path: Path, preprocessing: Preprocessing | None, *names: str | None) -> Any:
    """Read a table: categories and the columns `names` as text, the schema's others as numbers."""
    numbers, texts = _types(preprocessing)
    return read_table(path, numbers, [*texts, *(name for name in names if name is not None and name not in numbers)])


def standard_input(content: bytes, preprocessing: Preprocessing) -> Any:
    """Read a table from the bytes of a CSV; raise InvalidInput if it has no rows."""
    path = Path("standard input")
    return _some(read_csv(content, path, *_types(preprocessing)), path)


def _types(preprocessing: Preprocessing | None) -> tuple[list[str], list[str]]:
    """Return the names of the columns to read as numbers, and as text."""
    columns = () if preprocessing is None else preprocessing.columns
    texts = [entry.name for entry in columns if isinstance(entry, Category)]
    return [entry.name for entry in columns if not isinstance(entry, Category)], texts


def some_records(path: Path, preprocessing: Preprocessing | None, *names: str | None) -> Any:
    """Read a table as `records` does; raise InvalidInput if it has no rows."""
    return _some(records(path, preprocessing, *names), path)


def _some(table: Any, path: Path) -> Any:
    if not len(table):
        raise InvalidInput(f"{path}: holds no rows")
    return table


def labels(table: Any, name: str, path: Path, preprocessing: Preprocessing | None, classes: int) -> Tensor:
    """Return the labels, read as names of the schema's classes, or as numbers if it has none."""
    values = column(table, name, path)
    if preprocessing is not None and preprocessing.classes:
        return preprocessing.labels(values, f"{path}, column {name!r}")
    try:
        numbers = torch.tensor([int(value) for value in values])
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{path}, column {name!r}: expected labels 0..{classes - 1} ({error}); name the classes in a schema") from None
    return check_labels(numbers, len(values), classes, f"{path}, column {name!r}")


def class_names(model: Certified | CertifiedEnsemble, labels: list[int]) -> list[str]:
    """Return the names of the labels' classes, or their numbers if classes have no names."""
    names = () if model.preprocessing is None else model.preprocessing.classes
    return [names[label] if names else str(label) for label in labels]


def harmless(cell: Any) -> Any:
    """Return a cell that no spreadsheet treats as a formula, with an apostrophe if necessary."""
    if not isinstance(cell, str) or not cell.startswith(_FORMULA) or _NUMBER.fullmatch(cell):
        return cell
    return "'" + cell


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def load_model(path: Path) -> Certified | CertifiedEnsemble:
    """Load a saved model; raise InvalidInput if it cannot read tables."""
    from ..models.saved import load

    model = load(path)
    if model.preprocessing is None or not model.preprocessing.columns:
        raise InvalidInput(f"{path}: this model was trained without a schema, so it cannot read tables; use it from Python")
    return model
