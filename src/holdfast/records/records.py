"""Records: private data, checked and read in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..errors import InvalidInput


@dataclass(frozen=True)
class Block:
    """Some records of one batch.

    `limits` are the bounds on the entries of each record's gradient, in whole units; None if a
    record is all that its owner has, and the bound is the clip.
    """

    features: Tensor
    labels: Tensor
    limits: Tensor | None = None


@runtime_checkable
class Source(Protocol):
    """A source of records, read in blocks: in memory, on disk, or shared with other processes."""

    def count(self, batch: int) -> int:
        """Return how many records the batch has."""

    def blocks(
        self, batch: int, rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[Block]:
        """Yield the batch's records first..last-1, by default all, in blocks of at most `rows`.

        Records may come in any order because their sums are exact.
        """


@dataclass(frozen=True, eq=False)
class Records:
    """Records held in memory."""

    features: Tensor
    labels: Tensor
    order: Tensor | None  # row numbers sorted by batch; None if there is one batch
    starts: tuple[int, ...]  # where each batch begins in that order, and where the last one ends
    limits: Tensor | None = None

    @classmethod
    def of(
        cls,
        features: Tensor,
        labels: Tensor,
        batch: Tensor | None = None,
        batches: int = 1,
        limits: Tensor | None = None,
    ) -> Records:
        """Return records with the batch that each belongs to (by default, all in batch 0)."""
        if batch is None:
            return cls(features, labels, None, (0, len(labels)), limits)
        sizes = torch.bincount(batch, minlength=batches)
        starts = (0, *sizes.cumsum(0).tolist())
        return cls(features, labels, batch.argsort(stable=True), starts, limits)

    def count(self, batch: int) -> int:
        return self.starts[batch + 1] - self.starts[batch]

    def blocks(
        self, batch: int, rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[Block]:
        for low, high in row_ranges(self.starts[batch : batch + 2], rows, first, last):
            chosen = slice(low, high) if self.order is None else self.order[low:high]
            limits = None if self.limits is None else self.limits[chosen]
            yield Block(self.features[chosen], self.labels[chosen], limits)


def row_ranges(
    batch: tuple[int, ...], rows: int, first: int, last: int | None
) -> Iterator[tuple[int, int]]:
    """Yield ranges of at most `rows` rows that make up the rows first..last-1 of a batch.

    Args:
        batch: Where the batch begins and ends.
        rows: The most rows of a range.
        first: The first row, counted from the beginning of the batch.
        last: The end, counted likewise; None is the end of the batch.
    """
    start, end = batch
    end = end if last is None else min(end, start + last)
    for low in range(start + first, end, rows):
        yield low, min(low + rows, end)


NEGLIGIBLE = 2.0**-40
"""Features closer to 0 than this count as 0, in records and in queries."""


def as_features(x: Any, what: str = "x") -> Tensor:
    """Return a tensor, array, data frame or nested lists as a tensor with one row per record.

    Raises InvalidInput for anything else.
    """
    refuse_text_columns(x, what)
    try:
        # Lists become float64, so that no value depends on the types of the others.
        features = _as_tensor(x) if hasattr(x, "dtype") else _as_tensor(x).double()
    except Exception as error:
        raise InvalidInput(
            f"{what} is a {type(x).__name__}: expected a tensor or array of numbers ({error})"
        ) from error
    if features.is_complex() or features.layout != torch.strided or features.dim() < 2:
        raise InvalidInput(
            f"{what} is {features.dtype} {tuple(features.shape)}: expected dense real numbers, "
            "one row for each record or query"
        )
    return features


def refuse_text_columns(x: Any, what: str = "x") -> None:
    """Raise InvalidInput if a data frame has a column that does not hold numbers."""
    names, types = getattr(x, "columns", None), getattr(x, "dtypes", None)
    if names is None or types is None:
        return
    for name, kind in zip(names, types, strict=False):
        wordy = str(kind).lower().startswith(("object", "str", "cat", "enum"))
        word = next((value for value in x[name] if isinstance(value, str)), None) if wordy else None
        if word is not None:
            raise InvalidInput(
                f"{what}, column {name!r}: {word!r} is not a number; leave the column out, or say "
                "in a schema how it becomes numbers (hf.Preprocessing.schema)"
            )


def as_batch(queries: Any, dimensions: int) -> tuple[Any, bool]:
    """Return the queries as a batch, and whether they were a single record.

    A single record is a row of numbers, or a mapping from columns to cells.
    """
    if type(queries).__name__ == "LazyFrame":
        raise InvalidInput("queries is a LazyFrame: expected a data frame; call collect() on it")
    if isinstance(queries, np.ma.MaskedArray):
        raise InvalidInput("queries: masked arrays hide missing values; fill them by a public rule")
    if isinstance(queries, Mapping):
        single = {
            cell is None or isinstance(cell, str) or np.isscalar(cell) for cell in queries.values()
        }
        if len(single) > 1:
            raise InvalidInput(
                "queries: some columns hold one cell and others many; "
                "expected one record, or columns of equal length"
            )
        return (
            ({name: [cell] for name, cell in queries.items()}, True)
            if True in single
            else (queries, False)
        )
    if isinstance(queries, Tensor):
        return (queries[None], True) if queries.dim() == dimensions else (queries, False)
    if isinstance(queries, np.ndarray | list | tuple):
        try:
            return (
                (np.asarray(queries)[None], True)
                if np.ndim(queries) == dimensions
                else (queries, False)
            )
        except (ValueError, TypeError, RuntimeError):
            pass  # invalid queries are refused later, when features are read
    return queries, False


def check_features(x: Any, dtype: torch.dtype, what: str = "x") -> Float[Tensor, "records ..."]:
    """Return features in the model's dtype; raise on NaN, infinities and unsupported types.

    Numbers that are finite in float64 are never rejected for their size. Numbers closer to 0 than
    NEGLIGIBLE become 0: products with them could be denormal, and the time that those take would
    reveal something about the private weights.
    """
    given = as_features(x, what).cpu()
    if given.dtype == torch.bfloat16:
        given = given.float()  # numpy has no bfloat16
    if not np.isfinite(given.numpy()).all():  # numpy is several times faster for a single query
        finite = given.isfinite().flatten(1).all(1)
        first = (~given.isfinite()).nonzero()[0]
        place = f"row {int(first[0]) + 1}"
        place += f", column {int(first[1]) + 1}" if given.dim() == 2 else ""
        raise InvalidInput(
            f"{what} holds NaN or infinite values in {int((~finite).sum())} of {len(given)} rows "
            f"(first: {place}); fill or drop them by a public rule first"
        )
    # Numbers too large for the dtype overflow here, as they might in any layer.
    features = given.to(dtype).numpy()
    return torch.from_numpy(
        np.where(np.abs(features) < NEGLIGIBLE, features.dtype.type(0), features)
    )


def check_labels(y: Any, rows: int, classes: int, what: str = "y") -> Int64[Tensor, " {rows}"]:
    """Return labels as int64; raise on a wrong length or type, or labels outside 0..classes-1."""
    try:
        labels = _as_tensor(y).cpu()
    except Exception as error:
        raise InvalidInput(
            f"{what}: expected whole numbers 0..{classes - 1}; encode text labels first ({error})"
        ) from error
    if labels.is_floating_point() or labels.is_complex() or labels.layout != torch.strided:
        raise InvalidInput(
            f"{what} is {labels.dtype}: expected whole numbers 0..{classes - 1}; "
            "convert it to int64"
        )
    if labels.shape != (rows,):
        raise InvalidInput(
            f"{what} has shape {tuple(labels.shape)}: expected ({rows},), one label per record"
        )
    labels = labels.long()
    wrong = (labels < 0) | (labels >= classes)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise InvalidInput(
            f"{what}[{row}] = {int(labels[row])}: "
            f"expected a label from 0 to {classes - 1} (the model's classes)"
        )
    return labels


def _as_tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError("masked arrays hold missing values; fill them by a public rule")
    array = np.asarray(values)
    if array.dtype == object and all(type(value) in (int, float) for value in array.flat):
        array = array.astype(np.float64)  # whole numbers beyond 64 bits
    if array.dtype == object or array.dtype.kind in "USMm":
        raise TypeError(f"values of type {array.dtype}")
    return torch.from_numpy(
        np.array(array, order="C", copy=not array.flags.c_contiguous or not array.flags.writeable)
    )
