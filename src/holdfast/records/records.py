"""Records: private data, read in blocks and assigned to batches, members and folds by keyed hashes of ids.

Nothing here looks at a record's row number: deleting record 0 must not move any other record to another batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from ..checks import whole
from ..errors import InvalidInput


@dataclass(frozen=True)
class Block:
    """Some records of one batch."""

    features: Tensor
    labels: Tensor


@runtime_checkable
class Source(Protocol):
    """Where records come from. A source larger than memory is another class with these two methods."""

    def count(self, batch: int) -> int:
        """How many records the batch holds."""

    def blocks(self, batch: int, rows: int) -> Iterator[Block]:
        """The batch's records in blocks of at most `rows`. The order of records is free: their sums are exact."""


@dataclass(frozen=True, eq=False)
class Records:
    """Records held in memory."""

    features: Tensor
    labels: Tensor
    order: Tensor | None  # the records sorted by batch; None with one batch
    starts: tuple[int, ...]  # where each batch begins in that order, and the end

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, batch: Tensor | None = None, batches: int = 1) -> Records:
        """Records with the batch each belongs to (all in batch 0 by default)."""
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
    """A tensor, an array, a data frame or nested lists as a tensor with one row a record; refuses all else."""
    try:
        features = _as_tensor(x) if hasattr(x, "dtype") else _as_tensor(x).double()  # of lists: a cell must not depend on the others' types
    except Exception as error:
        raise InvalidInput(f"{what} is a {type(x).__name__}: expected a tensor or array of numbers ({error})") from error
    if features.is_complex() or features.layout != torch.strided or features.dim() < 2:
        raise InvalidInput(f"{what} is {features.dtype} {tuple(features.shape)}: expected dense real numbers, one row for each")
    return features


def check_features(x: Any, dtype: torch.dtype, what: str = "x") -> Float[Tensor, "records ..."]:
    """Return features as a tensor of the model's type; refuses NaN, infinities and foreign types.

    What is finite as a float64 is never refused for its size. Numbers closer to 0 than NEGLIGIBLE become 0: products with
    them could be denormal, and how long those take would tell about the private weights.
    """
    given = as_features(x, what).cpu()
    if given.dtype == torch.bfloat16:
        given = given.float()  # numpy has no such type
    if not np.isfinite(given.numpy()).all():  # numpy is several times quicker with a single query
        finite = given.isfinite().flatten(1).all(1)
        row = int((~finite).nonzero()[0])
        raise InvalidInput(
            f"{what} holds NaN or infinite values in {int((~finite).sum())} of {len(given)} rows (first: row {row}); "
            "fill or drop them by a public rule first"
        )
    features = given.to(dtype).numpy()  # what is too large for the type overflows here, as it might in any layer
    return torch.from_numpy(np.where(np.abs(features) < NEGLIGIBLE, features.dtype.type(0), features))


def check_labels(y: Any, rows: int, classes: int, what: str = "y") -> Int64[Tensor, " {rows}"]:
    """Labels as int64; refuses wrong lengths, wrong types and labels outside 0..classes-1."""
    try:
        labels = _as_tensor(y).cpu()
    except Exception as error:
        raise InvalidInput(f"{what}: expected whole numbers 0..{classes - 1}; encode text labels first ({error})") from error
    if labels.is_floating_point() or labels.is_complex() or labels.layout != torch.strided:
        raise InvalidInput(f"{what} is {labels.dtype}: expected whole numbers 0..{classes - 1}; convert it to int64")
    if labels.shape != (rows,):
        raise InvalidInput(f"{what} has shape {tuple(labels.shape)}: expected ({rows},), one label a record")
    labels = labels.long()
    wrong = (labels < 0) | (labels >= classes)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise InvalidInput(f"{what}[{row}] = {int(labels[row])}: expected a label from 0 to {classes - 1} (the model's classes)")
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
    return torch.from_numpy(np.array(array, order="C", copy=not array.flags.c_contiguous or not array.flags.writeable))


def given_ids(ids: Any, rows: int) -> list[bytes]:
    """The user's ids as bytes; refuses duplicates, wrong lengths and anything but whole numbers and strings."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InvalidInput(f"ids is a {type(ids).__name__}: expected one whole number or string a record")
    values = [value.item() if isinstance(value, np.generic | Tensor) else value for value in ids]
    if len(values) != rows:
        raise InvalidInput(f"{len(values)} ids for {rows} records: expected one id a record")
    seen: dict[bytes, int] = {}
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise InvalidInput(f"ids[{row}] = {value!r}: expected a whole number or a string")
        code = f"{'text' if isinstance(value, str) else 'number'}:{value}".encode("utf-8", "surrogatepass")
        if code in seen:
            raise InvalidInput(f"ids[{row}] = {value!r} is also the id of record {seen[code]}: ids must be unique, one per record")
        seen[code] = row
    return list(seen)


def content_ids(features: Float[Tensor, "records ..."], labels: Int64[Tensor, " records"]) -> list[bytes]:
    """The default ids: a hash of each record's content. Equal records share an id, and so a batch."""
    rows = (features.flatten(1) + 0.0).numpy()  # + 0.0: a negative zero is a zero
    return [hashlib.blake2b(row.tobytes() + int(label).to_bytes(8, "little")).digest() for row, label in zip(rows, labels, strict=True)]


def assign(ids: list[bytes], parts: int, seed: int, purpose: bytes) -> Int64[Tensor, " records"]:
    """A part 0..parts-1 for each id, by a hash keyed with the seed and separated by purpose.

    Guarantees
    ----------
    A record's part depends on its own id and public numbers only. Different purposes give independent parts.
    """
    key = seed.to_bytes(16, "little")
    digests = (hashlib.blake2b(code, digest_size=8, key=key, person=purpose).digest() for code in ids)
    return torch.tensor([int.from_bytes(digest, "little") % parts for digest in digests], dtype=torch.int64)


class HashKFold:
    """Split records into folds by a keyed hash of their ids, for scikit-learn's `cv=`.

    Folds that are cut by row number all change when one record leaves: the models of neighbouring data
    sets then differ in many records, and what their answers reveal is not what is charged. Here a record
    enters or leaves one fold and moves no other.

    Scores are not private, whatever the folds: they are computed from private labels. Use this to compare
    settings in private, and pay for what you publish.

    Args:
        n_splits: The number of folds.
        seed: The key of the hash; another seed gives other folds.

    Example:
        >>> import numpy as np, holdfast as hf
        >>> folds = hf.HashKFold(3)
        >>> sizes = [len(test) for _, test in folds.split(np.zeros((9, 1)), groups=range(9))]
        >>> sum(sizes)
        9
    """

    def __init__(self, n_splits: int = 5, *, seed: int = 0) -> None:
        self.n_splits, self.seed = whole("n_splits", n_splits, 2), whole("seed", seed, 0)

    def __repr__(self) -> str:
        return f"HashKFold({self.n_splits}, seed={self.seed})"

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:  # noqa: N803 (scikit-learn's name)
        """Return the number of folds."""
        return self.n_splits

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:  # noqa: N803
        """Yield the rows to train on and the rows to test on, fold by fold.

        Args:
            X: The records.
            y: Not used.
            groups: One unique id per record, a whole number or a string. Without, a record's id is a
                hash of its features, so that equal records share a fold.

        Raises:
            InvalidInput: If ids are given twice, or not one per record.
        """
        if groups is None:
            features = as_features(X)
            codes = content_ids(features, torch.zeros(len(features), dtype=torch.int64))
        else:
            codes = given_ids(groups, len(X))
        fold = assign(codes, self.n_splits, self.seed, b"fold").numpy()
        for number in range(self.n_splits):
            yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)
