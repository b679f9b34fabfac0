"""Prepare private records for training: check them, find their owners, and bring them in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from ..arrays import check_features, check_labels
from ..errors import InvalidInput
from ..preprocessing import Preprocessing
from . import (
    Chunk,
    ParquetRecords,
    owner_codes,
)
from .ids import id_codes, refuse_equal_ids
from .partitions import Partitions


def record_width(source: ParquetRecords, rules: Preprocessing | None) -> int:
    """Return the number of features of one record."""
    if rules is not None and rules.width is not None:
        return rules.width
    source.require_numbers()
    if not source.columns:
        raise InvalidInput(f"{source.path}: has no column of features")
    return len(source.columns)


def numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    """Return numpy's type for a type of torch."""
    return torch.empty(0, dtype=dtype).numpy().dtype


Part = tuple[Tensor, Tensor, list[bytes] | None]


ReadChunk = tuple[Tensor, Tensor, list[bytes] | None, int]


def in_partitions(
    source: ParquetRecords, chunks: Iterator[ReadChunk], width: int, dtype: DTypeLike
) -> Iterator[tuple[Tensor, Tensor, list[bytes]]]:
    """Yield records with their ids or owners, all of one owner together.

    Raises:
        InvalidInput: If an id occurs twice.
    """
    partitions = Partitions(source.count, width, dtype)
    for features, labels, codes, first in chunks:
        assert codes is not None
        partitions.append(features.numpy(), labels.numpy(), codes, first)
    for features, labels, codes, rows in partitions:
        if source.id is not None:
            refuse_equal_ids(codes, rows.tolist())
        yield features, labels, codes


def read_chunks(
    source: ParquetRecords,
    rules: Preprocessing | None,
    dtype: torch.dtype,
    labels_of: Callable[[Chunk], Tensor],
    watch: Any,
) -> Iterator[ReadChunk]:
    """Yield features, labels, ids or owners as bytes, and the number of the first row.

    Raises:
        InvalidInput: If a value is not valid, or, at the end, if the rules were fitted on the
            records.
    """
    columns = None if rules is None or not rules.columns else [c.name for c in rules.columns]
    shared, count, kinds = 0, 0, set[bytes]()
    for chunk in source.chunks(columns):
        x: Any = chunk.table if columns is not None else chunk.numbers()
        if rules is not None:
            x, found = rules.apply_part(x, chunk.place)
            shared += found
        features = check_features(x, dtype, chunk.place)
        yield features, labels_of(chunk), _chunk_codes(chunk, kinds), chunk.first
        count += len(features)
        if watch is not None:
            watch(len(features))
    if count != source.count:
        raise InvalidInput(
            f"{source.path}: {source.count:,} records when it was opened, and {count:,} when it "
            "was read; make a new hf.ParquetRecords, and leave the files alone while training runs"
        )
    if rules is not None:
        rules.refuse_shared(shared, source.count)


def label_numbers(chunk: Chunk, rules: Preprocessing | None, classes: int) -> Tensor:
    """Return the labels of a chunk: names of the rules' classes, or numbers without them."""
    if rules is not None and rules.classes:
        return rules.labels(chunk.labels, f"{chunk.place}, labels")
    if any(not isinstance(label, int) or abs(label) >= 2**63 for label in chunk.labels):
        raise InvalidInput(
            f"{chunk.place}: expected labels that are whole numbers 0..{classes - 1}; name the "
            "classes in a schema"
        )
    labels = torch.tensor(chunk.labels, dtype=torch.int64)
    return check_labels(labels, len(labels), classes, f"{chunk.place}, labels")


def _chunk_codes(chunk: Chunk, kinds: set[bytes]) -> list[bytes] | None:
    """Return the ids or the owners; raise if owners are numbers here and strings elsewhere."""
    if chunk.persons is None:
        count = len(chunk.labels)
        return None if chunk.ids is None else id_codes(f"{chunk.place}, ids", chunk.ids, count)
    try:
        codes = owner_codes(chunk.persons, len(chunk.labels))
    except InvalidInput as error:
        raise InvalidInput(f"{chunk.place}: {error}") from None
    kinds |= {code[:4] for code in codes}
    if len(kinds) > 1:
        raise InvalidInput(f"{chunk.place}: owners are both numbers and strings; convert them")
    return codes
