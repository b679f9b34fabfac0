"""Records: private data, in blocks, assigned to batches, members and folds by hashes of ids.

Nothing here looks at a record's row number: deleting record 0 must not move any other record to
another batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from ..checks import check_integer
from ..errors import InvalidInput


@dataclass(frozen=True)
class Block:
    """Some records of one batch."""

    features: Tensor
    labels: Tensor


@runtime_checkable
class Source(Protocol):
    """A source of records, read in blocks.

    For data larger than memory, write another class with these two methods.
    """

    def count(self, batch: int) -> int:
        """Return how many records the batch has."""

    def blocks(self, batch: int, rows: int) -> Iterator[Block]:
        """Yield the batch's records in blocks of at most `rows`.

        Records may come in any order because their sums are exact.
        """


@dataclass(frozen=True, eq=False)
class Records:
    """Records held in memory."""

    features: Tensor
    labels: Tensor
    order: Tensor | None  # row numbers sorted by batch; None if there is one batch
    starts: tuple[int, ...]  # where each batch begins in that order, and where the last one ends

    @classmethod
    def of(
        cls, features: Tensor, labels: Tensor, batch: Tensor | None = None, batches: int = 1
    ) -> Records:
        """Return records with the batch that each belongs to (by default, all in batch 0)."""
        if batch is None:
            return cls(features, labels, None, (0, len(labels)))
        sizes = torch.bincount(batch, minlength=batches)
        return cls(features, labels, batch.argsort(stable=True), (0, *sizes.cumsum(0).tolist()))

    def count(self, batch: int) -> int:
        return self.starts[batch + 1] - self.starts[batch]

    def blocks(self, batch: int, rows: int) -> Iterator[Block]:
        for first in range(self.starts[batch], self.starts[batch + 1], rows):
            last = min(first + rows, self.starts[batch + 1])
            chosen = slice(first, last) if self.order is None else self.order[first:last]
            yield Block(self.features[chosen], self.labels[chosen])


NEGLIGIBLE = 2.0**-40
"""Features closer to 0 than this count as 0, in records and in queries."""


def as_features(x: Any, what: str = "x") -> Tensor:
    """Return a tensor, array, data frame or nested lists as a tensor with one row per record.

    Raises InvalidInput for anything else.
    """
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


def as_batch(queries: Any, dimensions: int) -> tuple[Any, bool]:
    """Return the queries as a batch, and whether they were a single record.

    A single record is a row of numbers, or a mapping from columns to cells.
    """
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
        row = int((~finite).nonzero()[0])
        raise InvalidInput(
            f"{what} holds NaN or infinite values in {int((~finite).sum())} of {len(given)} rows "
            f"(first: row {row}); fill or drop them by a public rule first"
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


def given_ids(ids: Any, rows: int) -> list[bytes]:
    """Return the user's ids as bytes.

    Raises InvalidInput on duplicates, a wrong length, and ids other than whole numbers and strings.
    """
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InvalidInput(
            f"ids is a {type(ids).__name__}: expected one whole number or string per record"
        )
    values = [value.item() if isinstance(value, np.generic | Tensor) else value for value in ids]
    if len(values) != rows:
        raise InvalidInput(f"{len(values)} ids for {rows} records: expected one id per record")
    seen: dict[bytes, int] = {}
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise InvalidInput(f"ids[{row}] = {value!r}: expected a whole number or a string")
        code = f"{'text' if isinstance(value, str) else 'number'}:{value}".encode(
            "utf-8", "surrogatepass"
        )
        if code in seen:
            raise InvalidInput(
                f"ids[{row}] = {value!r} is also the id of record {seen[code]}: "
                "ids must be unique, one per record"
            )
        seen[code] = row
    return list(seen)


def content_ids(
    features: Float[Tensor, "records ..."], labels: Int64[Tensor, " records"]
) -> list[bytes]:
    """Return the default ids: a hash of each record's content.

    Equal records share an id, and therefore a batch.
    """
    rows = (features.flatten(1) + 0.0).numpy()  # + 0.0 turns negative zeros into zeros
    return [
        hashlib.blake2b(row.tobytes() + int(label).to_bytes(8, "little")).digest()
        for row, label in zip(rows, labels, strict=True)
    ]


def assign_parts(
    ids: list[bytes], parts: int, seed: int, purpose: bytes
) -> Int64[Tensor, " records"]:
    """Return a part 0..parts-1 for each id, by a hash keyed with the seed and the purpose.

    Guarantees:
        A record's part depends only on its own id and on public numbers. Different purposes give
        independent parts.
    """
    key = seed.to_bytes(16, "little")
    digests = (
        hashlib.blake2b(code, digest_size=8, key=key, person=purpose).digest() for code in ids
    )
    return torch.tensor(
        [int.from_bytes(digest, "little") % parts for digest in digests], dtype=torch.int64
    )


def hash_codes(ids: list[bytes], seed: int) -> NDArray[np.int64]:
    """Return a keyed hash of each id, by which records are put in an order of their own."""
    key = seed.to_bytes(16, "little")
    digests = (
        hashlib.blake2b(code, digest_size=8, key=key, person=b"order").digest() for code in ids
    )
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)


class HashKFold:
    """Split records into folds by a keyed hash of their ids, for scikit-learn's `cv=`.

    If folds are cut by row number, all of them change when one record leaves: the models of
    neighbouring data sets then differ in many records, and their answers can reveal more than is
    charged. Here, a record enters or leaves one fold and moves no other record.

    Scores are not private, whatever the folds are: they are computed from private labels. Use them
    to compare settings without publishing them; whatever is published must be charged to a budget.

    Args:
        n_splits: The number of folds.
        seed: The key of the hash; another seed gives other folds.

    Example:
        >>> import numpy as np, holdfast as hf
        >>> folds = hf.records.HashKFold(3)
        >>> sizes = [len(test) for _, test in folds.split(np.zeros((9, 1)), groups=range(9))]
        >>> sum(sizes)
        9
    """

    def __init__(self, n_splits: int = 5, *, seed: int = 0) -> None:
        self.n_splits, self.seed = (
            check_integer("n_splits", n_splits, 2),
            check_integer("seed", seed, 0),
        )

    def __repr__(self) -> str:
        return f"HashKFold({self.n_splits}, seed={self.seed})"

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of folds."""
        return self.n_splits

    def split(
        self,
        X: Any,
        y: Any = None,
        groups: Any = None,
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the rows to train on and the rows to test on, fold by fold.

        Args:
            X: The records.
            y: Not used.
            groups: One unique id per record, a whole number or a string. Without it, a record's id
                is a hash of its features, so that equal records share a fold.

        Raises:
            InvalidInput: If an id occurs twice, or there is not one id per record.
        """
        if groups is None:
            features = as_features(X)
            codes = content_ids(features, torch.zeros(len(features), dtype=torch.int64))
        else:
            codes = given_ids(groups, len(X))
        fold = assign_parts(codes, self.n_splits, self.seed, b"fold").numpy()
        for number in range(self.n_splits):
            yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)
