"""Tables and models as the commands read them."""

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
    """A table whose categories, and the columns named, are read as text, and its other columns as numbers."""
    numbers, texts = _types(preprocessing)
    return read_table(path, numbers, [*texts, *(name for name in names if name is not None and name not in numbers)])


def standard_input(content: bytes, preprocessing: Preprocessing) -> Any:
    """A table from a CSV's bytes, of at least one row."""
    path = Path("standard input")
    return _some(read_csv(content, path, *_types(preprocessing)), path)


def _types(preprocessing: Preprocessing | None) -> tuple[list[str], list[str]]:
    """The columns that are read as numbers, and as text."""
    columns = () if preprocessing is None else preprocessing.columns
    texts = [entry.name for entry in columns if isinstance(entry, Category)]
    return [entry.name for entry in columns if not isinstance(entry, Category)], texts


def some_records(path: Path, preprocessing: Preprocessing | None, *names: str | None) -> Any:
    """`records`, of which there must be one at least."""
    return _some(records(path, preprocessing, *names), path)


def _some(table: Any, path: Path) -> Any:
    if not len(table):
        raise InvalidInput(f"{path}: holds no rows")
    return table


def labels(table: Any, name: str, path: Path, preprocessing: Preprocessing | None, classes: int) -> Tensor:
    """The label column: names of the schema's classes, or whole numbers where there are none."""
    values = column(table, name, path)
    if preprocessing is not None and preprocessing.classes:
        return preprocessing.labels(values, f"{path}, column {name!r}")
    try:
        numbers = torch.tensor([int(value) for value in values])
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{path}, column {name!r}: expected labels 0..{classes - 1} ({error}); name the classes in a schema") from None
    return check_labels(numbers, len(values), classes, f"{path}, column {name!r}")


def class_names(model: Certified | CertifiedEnsemble, labels: list[int]) -> list[str]:
    """Labels as people read them."""
    names = () if model.preprocessing is None else model.preprocessing.classes
    return [names[label] if names else str(label) for label in labels]


def harmless(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: text that begins like one gets an apostrophe in front."""
    if not isinstance(cell, str) or not cell.startswith(_FORMULA) or _NUMBER.fullmatch(cell):
        return cell
    return "'" + cell


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def load_model(path: Path) -> Certified | CertifiedEnsemble:
    """A saved model that takes tables."""
    from ..models.saved import load

    model = load(path)
    if model.preprocessing is None or not model.preprocessing.columns:
        raise InvalidInput(f"{path}: this model was trained without a schema, so it cannot read tables; use it from Python")
    return model
