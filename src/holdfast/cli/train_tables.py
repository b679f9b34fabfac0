"""The tables of `holdfast train`: the schema, the records, their labels and owners."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import holdfast as hf

if TYPE_CHECKING:
    from torch import Tensor


def public_rules(schema: Path, public: Path | None, shrinkage: float) -> hf.Preprocessing:
    """Return the rules of the schema, whitened by public rows if there are any."""
    preprocessing = hf.Preprocessing.schema(schema)
    if not preprocessing.classes:
        raise hf.errors.InvalidInput(
            f'{schema}: the set of labels is public: write classes = ["...", "..."] in the schema'
        )
    if public is None:
        return preprocessing
    rows = hf.preprocessing.read_records(public, preprocessing, empty=True)
    return preprocessing.whitened(rows, shrinkage=shrinkage)


def warn_of_private_draft(schema: Path, table: Path) -> None:
    """Warn if the schema says that it was drafted from the private table itself."""
    if schema.read_text("utf-8").startswith(f"# Drafted from {table.name},"):
        warnings.warn(
            f"{schema} was drafted from {table.name}, the private table: its ranges, categories "
            "and classes count as public, and the guarantee does not cover them. Draft it from "
            "public rows, or write it from what is known about the columns",
            hf.errors.HoldfastWarning,
            stacklevel=2,
        )


def records(
    table: Path, label: str, ids: list[str | None], preprocessing: hf.Preprocessing
) -> tuple[Any, Tensor]:
    """Return the private records and their labels, as numbers of classes."""
    for name in ids:
        if name == label:
            raise hf.errors.InvalidInput(
                f"column {name!r} is the label; it cannot also be the id or owner of a record"
            )
    for name, role in ((label, "label"), *((name, "id or owner") for name in ids)):
        if any(entry.name == name for entry in preprocessing.columns):
            raise hf.errors.InvalidInput(
                f"column {name!r} is the {role} and also a feature of the schema; "
                "take it out of the schema"
            )
    x = hf.preprocessing.read_records(table, preprocessing)
    classes = len(preprocessing.classes)
    return x, hf.preprocessing.read_labels(x, label, table, preprocessing, classes)


def column_of_ids(x: Any, name: str | None, table: Path, what: str) -> list[Any] | None:
    """Return the column of ids or owners, one per record; None if no column is named."""
    if name is None:
        return None
    names = hf.records.column(x, name, table)
    if any(value is None or str(value).strip() in hf.records.NO_OWNER for value in names):
        raise hf.errors.InvalidInput(f"{table}, column {name!r}: a record without an {what}")
    return names
