"""Ids: assignment of records to batches, members and orders by keyed hashes.

Nothing here looks at a record's row number: deleting record 0 must not move any other record to
another batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InvalidInput


def id_codes(what: str, ids: Any, rows: int) -> list[bytes]:
    """Return one id per record as bytes; `what` names the argument in error messages.

    Raises InvalidInput on a wrong length, and on ids other than whole numbers and strings.
    """
    one_each = getattr(ids, "ndim", 1) == 1 and not isinstance(ids, Set | Mapping | str | bytes)
    if not one_each or not isinstance(ids, Iterable):
        raise InvalidInput(
            f"{what} is a {type(ids).__name__}: expected one whole number or string per record"
        )
    values = [value.item() if isinstance(value, np.generic | Tensor) else value for value in ids]
    if len(values) != rows:
        raise InvalidInput(f"{len(values)} {what} for {rows} records: expected one per record")
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise InvalidInput(f"{what}[{row}] = {value!r}: expected a whole number or a string")
    return [
        f"{'text' if isinstance(value, str) else 'number'}:{value}".encode("utf-8", "surrogatepass")
        for value in values
    ]


def given_ids(ids: Any, rows: int) -> list[bytes]:
    """Return the user's ids as bytes; raise InvalidInput if one occurs twice, as in `id_codes`."""
    codes = id_codes("ids", ids, rows)
    refuse_equal_ids(codes, range(rows))
    return codes


def refuse_equal_ids(codes: list[bytes], rows: Iterable[int]) -> None:
    """Raise InvalidInput if an id occurs twice; `rows` are the numbers of their rows, from 0."""
    seen: dict[bytes, int] = {}
    for code, row in zip(codes, rows, strict=True):
        if code in seen:
            kind, _, name = code.decode("utf-8", "surrogatepass").partition(":")
            raise InvalidInput(
                f"ids, row {row + 1}: {name if kind == 'number' else repr(name)} "
                f"is also the id of row {seen[code] + 1}: "
                "ids must be unique, one per record"
            )
        seen[code] = row


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
