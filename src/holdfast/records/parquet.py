"""Private records in Parquet files, which may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInput
from .dataset import Chunk
from .store import part_rows

Stamp = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ParquetFiles:
    """The source of `Dataset.parquet`: a Parquet file, or a folder of them, read in parts."""

    in_parts: ClassVar[bool] = True
    owners: ClassVar[None] = None  # not known before the files are read

    path: str | PathLike[str]
    label: str
    columns: Sequence[str] | None
    id: str | None
    person: str | None
    files: tuple[Path, ...] = field(init=False, repr=False)
    types: dict[str, Any] = field(init=False, repr=False)
    count: int = field(init=False, repr=False)
    _names: tuple[str, ...] = field(init=False, repr=False)
    _stamps: tuple[Stamp, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("path", "label"):
            if not isinstance(getattr(self, name), str | PathLike):
                raise InvalidInput(f"{name}={getattr(self, name)!r}: expected a name")
        object.__setattr__(self, "files", _files(Path(self.path)))
        object.__setattr__(self, "_stamps", tuple(_stamp(file) for file in self.files))
        schemas, counts = zip(*(_about(file) for file in self.files), strict=True)
        object.__setattr__(self, "count", sum(counts))
        names = schemas[0].names
        object.__setattr__(self, "types", dict(zip(names, schemas[0].types, strict=True)))
        for file, schema in zip(self.files, schemas, strict=True):
            if _columns_of(schema) != _columns_of(schemas[0]):
                raise InvalidInput(
                    f"{file}: its columns are not those of {self.files[0]}; expected the same "
                    "names and types in all files"
                )
        special = [name for name in (self.label, self.id, self.person) if name is not None]
        object.__setattr__(self, "_names", tuple(names))
        if self.columns is None:
            left_out = {*special, *_index_columns(schemas[0])}
            object.__setattr__(self, "columns", tuple(n for n in names if n not in left_out))
            self._require_columns(special)
        else:
            if isinstance(self.columns, str) or not isinstance(self.columns, Iterable):
                raise InvalidInput(f"columns={self.columns!r}: expected names of columns")
            object.__setattr__(self, "columns", tuple(self.columns))
            self._require_columns([*special, *self.columns])

    def _require_columns(self, wanted: Sequence[str]) -> None:
        """Raise InvalidInput unless each of these columns is there once, and is wanted once."""
        for name in wanted:
            if self._names.count(name) != 1:
                raise InvalidInput(
                    f"{self.path}: {self._names.count(name)} columns named {name!r}; expected one; "
                    f"there are {', '.join(self._names[:20])}"
                )
            if list(wanted).count(name) > 1:
                raise InvalidInput(f"{self.path}: column {name!r} is used twice")

    @property
    def place(self) -> str:
        return str(self.path)

    @property
    def has_ids(self) -> bool:
        return self.id is not None

    @property
    def has_persons(self) -> bool:
        return self.person is not None

    def record_shape(self) -> tuple[int, ...]:
        """Return the number of columns; raise InvalidInput if one does not hold numbers."""
        from pyarrow import types

        kinds = (types.is_integer, types.is_floating, types.is_boolean)
        for name in self.columns or ():
            if not any(kind(self.types[name]) for kind in kinds):
                raise InvalidInput(_not_numbers(f"{self.path}", name, self.types[name]))
        if not self.columns:
            raise InvalidInput(f"{self.path}: has no column of features")
        return (len(self.columns),)

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[Chunk]:
        """Yield the records in parts that fit into memory, in the order of the files.

        Args:
            columns: The columns of features, if a schema names them.
        """
        from pyarrow import ArrowException, Table, parquet

        features = list(self.columns or ()) if columns is None else list(columns)
        special = [name for name in (self.label, self.id, self.person) if name is not None]
        self._require_columns([*special, *features])
        first, rows = 0, part_rows(8 * len(features))
        for file, stamp in zip(self.files, self._stamps, strict=True):
            if _stamp(file) != stamp:
                raise InvalidInput(f"{file}: was changed after it was opened; open it again")
            try:
                opened = parquet.ParquetFile(
                    file, buffer_size=2**20, pre_buffer=False, page_checksum_verification=True
                )
                for batch in opened.iter_batches(
                    rows, columns=[*features, *special], use_threads=False
                ):
                    table = Table.from_batches([batch])
                    yield self._chunk(table, features, first, columns is not None)
                    first += len(table)
            except (ArrowException, OSError, UnicodeDecodeError) as error:
                raise InvalidInput(f"{file}: not a readable table ({error})") from error

    def _chunk(self, table: Any, features: list[str], first: int, named: bool) -> Chunk:
        def column(name: str | None) -> list[Any] | None:
            return None if name is None else table[name].to_pylist()

        place = f"{self.path}, rows {first + 1:,} to {first + len(table):,}"
        x = table.select(features)
        return Chunk(
            place,
            f"{place}, labels",
            first,
            x if named else _numbers(x, place),
            column(self.label),
            column(self.id),
            column(self.person),
        )


def _numbers(table: Any, place: str) -> Tensor:
    """Return the features as they are, in the type that holds all columns."""
    arrays = []
    for name in table.column_names:
        values = table[name].to_numpy()
        if values.dtype.kind not in "fiub" and table[name].null_count:
            raise InvalidInput(
                f"{place}, column {name!r}: holds missing values; fill them in, or say in a schema "
                "what they become"
            )
        if values.dtype.kind not in "fiub":
            raise InvalidInput(_not_numbers(place, name, table[name].type))
        arrays.append(values)
    kinds = {array.dtype for array in arrays}
    if kinds in ({np.dtype(np.float32)}, {np.dtype(np.uint64)}):
        (kind,) = kinds
    elif all(each.kind in "iu" and each != np.uint64 for each in kinds):
        kind = np.dtype(np.int64)  # rounded once, by the model's type, as in memory
    else:
        kind = np.dtype(np.float64)
    return torch.from_numpy(np.stack(arrays, 1).astype(kind))


def _not_numbers(place: str, name: str, kind: Any) -> str:
    return (
        f"{place}, column {name!r}: holds {kind}, not numbers; name the columns of features, or "
        "say in a schema how it becomes numbers"
    )


def _files(path: Path) -> tuple[Path, ...]:
    try:
        if path.is_file():
            return (path,)
        listed = sorted(path.iterdir()) if path.is_dir() else []
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read ({error.strerror})") from None
    found = tuple(file for file in listed if not file.name.startswith((".", "_")))
    if not found:
        raise InvalidInput(f"{path}: expected a .parquet file, or a folder of them")
    for file in found:
        if not file.is_file() or file.suffix != ".parquet":
            raise InvalidInput(
                f"{file}: expected .parquet files alone in the folder (names that begin with . or "
                "_ are passed over); move it elsewhere"
            )
    if len({_stamp(file)[:2] for file in found}) < len(found):
        raise InvalidInput(f"{path}: two of its files are the same one; remove one of the links")
    return found


def _stamp(file: Path) -> Stamp:
    """Return what changes if a file is written or replaced; raise InvalidInput if it is gone."""
    try:
        about = file.stat()
    except OSError as error:
        raise InvalidInput(f"{file}: not a readable table ({error})") from None
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def _columns_of(schema: Any) -> list[tuple[str, str]]:
    """Return the names and types of a schema's columns, whatever their order."""
    return sorted((name, str(kind)) for name, kind in zip(schema.names, schema.types, strict=True))


def _index_columns(schema: Any) -> list[str]:
    """Return the columns in which pandas has written the index of a data frame."""
    about = schema.pandas_metadata or {}
    return [name for name in about.get("index_columns", ()) if isinstance(name, str)]


def _about(file: Path) -> tuple[Any, int]:
    """Return the schema of a file and the number of its rows."""
    from pyarrow import ArrowException, parquet

    try:
        opened = parquet.ParquetFile(file)
        return opened.schema_arrow, opened.metadata.num_rows
    except (ArrowException, OSError) as error:
        raise InvalidInput(f"{file}: not a readable table ({error})") from error
