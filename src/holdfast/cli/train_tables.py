"""The tables of `holdfast train`: the schema, the records, their labels and owners."""

from __future__ import annotations

from dataclasses import dataclass
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
    names = [table.name, *(file.name for file in table.glob("*.parquet"))]
    text = schema.read_text("utf-8")
    drafted = next((name for name in names if text.startswith(f"# Drafted from {name},")), None)
    if drafted is not None:
        hf.errors.warn(
            f"{schema} was drafted from {drafted}, the private table: its ranges, categories "
            "and classes count as public, and the guarantee does not cover them. Draft it from "
            "public rows, or write it from what is known about the columns"
        )


@dataclass(frozen=True)
class PrivateTable:
    """The private records: a table in memory, or `hf.ParquetRecords`, which carry their labels."""

    x: Any
    y: Tensor | None
    ids: list[Any] | None
    persons: list[Any] | None

    @property
    def count(self) -> int:
        """The number of records."""
        return self.x.count if self.y is None else len(self.y)

    @property
    def per_person(self) -> bool:
        """Whether the owners of the records are known."""
        return self.persons is not None or getattr(self.x, "person", None) is not None

    @property
    def persons_count(self) -> int | None:
        """The number of owners, if it is known without reading the files again."""
        return None if self.persons is None else len(set(self.persons))


def private_table(
    table: Path, label: str, ids: str | None, person: str | None, preprocessing: hf.Preprocessing
) -> PrivateTable:
    """Open the private records: Parquet is read in parts while training, CSV at once."""
    _refuse_columns(label, [ids, person], preprocessing)
    if table.is_dir() or table.suffix == ".parquet":
        x = hf.ParquetRecords(table, label=label, id=ids, person=person)
        return PrivateTable(x, None, None, None)
    x = hf.preprocessing.read_records(table, preprocessing)
    y = hf.preprocessing.read_labels(x, label, table, preprocessing, len(preprocessing.classes))
    owners = column_of_ids(x, person, table, "owner")
    return PrivateTable(x, y, column_of_ids(x, ids, table, "id"), owners)


def _refuse_columns(label: str, ids: list[str | None], preprocessing: hf.Preprocessing) -> None:
    """Raise InvalidInput if a column is used twice."""
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


def column_of_ids(x: Any, name: str | None, table: Path, what: str) -> list[Any] | None:
    """Return the column of ids or owners, one per record; None if no column is named."""
    if name is None:
        return None
    names = hf.preprocessing.tables.column(x, name, table)
    if any(value is None or str(value).strip() in hf.records.NO_OWNER for value in names):
        raise hf.errors.InvalidInput(f"{table}, column {name!r}: a record without an {what}")
    return names
