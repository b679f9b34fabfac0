"""Stores of rows: in memory, in files without a name, and grouped by id or owner.

All records of one owner, and all records that could have the same id, are in one partition.
"""

from __future__ import annotations

import math
import os
import pickle
import tempfile
import weakref
from collections.abc import Iterator
from itertools import pairwise
from typing import IO, Any, Protocol

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from ..errors import HoldfastError, InvalidInput
from .ids import assign_parts

SPOOL_ROWS = 65_536
"""The most rows that are read, written or sorted at a time."""

_PART_BYTES = 2**26
PARTS_MEMORY = 2**29
"""About how many bytes the parts of a table on disk take that are in memory at a time."""


def part_rows(row_bytes: int) -> int:
    """Return how many rows of a size are read, written or sorted at a time."""
    return max(1, min(SPOOL_ROWS, _PART_BYTES // max(1, row_bytes)))


def disk_full(error: OSError) -> InvalidInput:
    """Return the error for temporary records that cannot be written."""
    return InvalidInput(
        f"{_temporary_folder()}: the records cannot be kept there while training runs "
        f"({error.strerror}); name a folder with more room in TMPDIR"
    )


def _temporary_folder() -> str:
    """Return the folder that TMPDIR names, and no other, even if that one cannot be used."""
    return os.environ.get("TMPDIR") or tempfile.gettempdir()


def temporary_file() -> IO[bytes]:
    """Open a file without a name in the folder for temporary files.

    Raises:
        InvalidInput: If it cannot be opened. If TMPDIR names a folder that cannot be used, no
            other is taken: that one might not be meant for private records.
    """
    folder = _temporary_folder()
    try:
        return tempfile.TemporaryFile(prefix="holdfast-", dir=folder)
    except OSError as error:
        raise InvalidInput(
            f"{folder}: the records cannot be kept there while training runs "
            f"({error.strerror}); name another folder in TMPDIR, or allow more open files "
            "(ulimit -n)"
        ) from error


class RowStore(Protocol):
    """Rows of one type and width, appended in order and then read in parts."""

    rows: int
    width: int
    dtype: np.dtype[Any]

    def append(self, rows: NDArray[Any]) -> None:
        """Append rows."""

    def read(self, first: int, last: int) -> NDArray[Any]:
        """Return rows first..last-1."""

    def gathered(self, order: NDArray[np.int64]) -> RowStore:
        """Return a store with the rows order[0], order[1], ...; no row may occur twice."""

    def close(self) -> None:
        """Free the rows."""


class MemoryRows:
    """Rows in memory.

    Args:
        width: The number of values per row.
        dtype: Their type.
    """

    def __init__(self, width: int, dtype: DTypeLike) -> None:
        self.width, self.dtype, self.rows = width, np.dtype(dtype), 0
        self._array: NDArray[Any] = np.empty((0, width), dtype)
        self._order: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, features: Tensor) -> MemoryRows:
        """Return the rows of a tensor, without a copy."""
        store = cls(math.prod(features.shape[1:]), features.numpy().dtype)
        store.append(features.reshape(len(features), store.width).numpy())
        return store

    def append(self, rows: NDArray[Any]) -> None:
        self._array = np.concatenate([self._array, rows]) if self.rows else rows
        self.rows = len(self._array)

    def read(self, first: int, last: int) -> NDArray[Any]:
        chosen = slice(first, last) if self._order is None else self._order[first:last]
        rows: NDArray[Any] = self._array[chosen]
        return rows

    def gathered(self, order: NDArray[np.int64]) -> MemoryRows:
        """Return the same rows in another order; they are not copied."""
        store = MemoryRows(self.width, self._array.dtype)
        store._array, store.rows = self._array, len(order)
        store._order = order if self._order is None else self._order[order]
        return store

    def close(self) -> None:
        pass  # stores in another order share the rows


class Spool:
    """Rows of one type and width, appended in order and then read in parts.

    The file is in the folder for temporary files (TMPDIR). It has no name and belongs to its owner
    alone, so nothing of it is left when the process ends, however it ends.

    Args:
        width: The number of values per row.
        dtype: Their type.
    """

    def __init__(self, width: int, dtype: DTypeLike) -> None:
        self.width, self.dtype, self.rows = width, np.dtype(dtype), 0
        self._file = temporary_file()
        weakref.finalize(self, self._file.close)

    @property
    def _row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    def append(self, rows: NDArray[Any]) -> None:
        """Append rows.

        Raises:
            InvalidInput: If the disk is full.
        """
        self.write(self.rows, rows)

    def write(self, first: int, rows: NDArray[Any]) -> None:
        """Write rows to the places from `first` on; raise InvalidInput if the disk is full."""
        content = np.ascontiguousarray(rows, dtype=self.dtype).reshape(-1).view(np.uint8).data
        offset = first * self._row_bytes
        try:
            while content:
                count = os.pwrite(self._file.fileno(), content, offset)
                content, offset = content[count:], offset + count
        except OSError as error:
            raise disk_full(error) from error
        self.rows = max(self.rows, first + len(rows))

    def read(self, first: int, last: int) -> NDArray[Any]:
        """Return rows first..last-1."""
        rows = np.empty((last - first, self.width), self.dtype)
        left, offset = rows.reshape(-1).view(np.uint8).data, first * self._row_bytes
        while left:
            count = os.preadv(self._file.fileno(), [left], offset)
            if not count:
                raise HoldfastError("a file of temporary records became shorter; start again")
            left, offset = left[count:], offset + count
        return rows

    def gathered(self, order: NDArray[np.int64]) -> Spool:
        """Return a spool with the rows order[0], order[1], ...; no row may occur twice.

        Rows are first written to the bucket of neighbouring places that each belongs to, and then
        sorted bucket by bucket, so that one bucket is in memory at a time.
        """
        place = np.full(self.rows, -1, np.int64)
        place[order] = np.arange(len(order))
        part = part_rows(self._row_bytes)
        count = -(-len(order) // part)
        scratch = Spool(self.width, self.dtype)  # bucket after bucket, each of a part's rows
        places: list[list[NDArray[np.int64]]] = [[] for _ in range(count)]
        filled = np.arange(count) * part
        for first in range(0, self.rows, part):
            own = place[first : min(first + part, self.rows)]
            sources = np.flatnonzero(own >= 0)
            sources = sources[(own[sources] // part).argsort(kind="stable")]
            rows, buckets = self.read(first, first + len(own))[sources], own[sources] // part
            starts = np.flatnonzero(np.diff(buckets, prepend=-1))
            for low, high in pairwise([*starts.tolist(), len(buckets)]):
                bucket = int(buckets[low])
                scratch.write(int(filled[bucket]), rows[low:high])
                filled[bucket] += high - low
                places[bucket].append(own[sources[low:high]] - bucket * part)
        result = Spool(self.width, self.dtype)
        for bucket, found in enumerate(places):
            rows = np.empty((sum(map(len, found)), self.width), self.dtype)
            start = bucket * part
            rows[np.concatenate(found)] = scratch.read(start, start + len(rows))
            result.append(rows)
        scratch.close()
        return result

    def close(self) -> None:
        self._file.close()


_MOST = 64
_ROWS_EACH = 200_000
_BYTES_EACH = 2**27


class Partitions:
    """Records by partition, in files without names.

    Args:
        rows: About how many records there will be.
        width: The number of features of a record.
        dtype: Their type.
    """

    def __init__(self, rows: int, width: int, dtype: DTypeLike) -> None:
        size = rows * width * np.dtype(dtype).itemsize
        count = min(_MOST, max(1, -(-rows // _ROWS_EACH), -(-size // _BYTES_EACH)))
        self._features = [Spool(width, dtype) for _ in range(count)]
        self._others = [temporary_file() for _ in range(count)]
        for file in self._others:
            weakref.finalize(self, file.close)

    def append(
        self, features: NDArray[Any], labels: NDArray[np.int64], codes: list[bytes], first: int
    ) -> None:
        """Add records with their ids or owners; `first` is the number of the first row."""
        part = assign_parts(codes, len(self._features), 0, b"partition").numpy()
        for number, (spool, others) in enumerate(zip(self._features, self._others, strict=True)):
            rows = np.flatnonzero(part == number)
            if len(rows):
                spool.append(features[rows])
                own = [codes[row] for row in rows]
                try:
                    pickle.dump((labels[rows], own, rows + first), others)
                    others.flush()
                except OSError as error:
                    raise disk_full(error) from error

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, list[bytes], NDArray[np.int64]]]:
        """Yield each partition's features, labels, ids or owners, and numbers of rows."""
        for spool, others in zip(self._features, self._others, strict=True):
            end = others.tell()
            others.seek(0)
            labels, codes, rows = [], [], []
            while others.tell() < end:
                some_labels, some_codes, some_rows = pickle.load(others)
                labels.append(some_labels)
                codes += some_codes
                rows.append(some_rows)
            features = torch.from_numpy(spool.read(0, spool.rows))
            spool.close()
            others.close()
            if codes:
                yield (
                    features,
                    torch.from_numpy(np.concatenate(labels)),
                    codes,
                    np.concatenate(rows),
                )
