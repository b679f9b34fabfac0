"""Partitions: records grouped by a hash of their id or owner, a part of them in memory at a time.

All records of one owner, and all records that could have the same id, are in one partition.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from .ids import assign_parts
from .spool import Spool, disk_full, temporary_file

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
