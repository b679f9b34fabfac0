"""An oracle of the preparation of records, in plain Python: no torch, no numpy, one row at a time.

It says which member and batch each record belongs to, which records of a person are used, how many
of them there are, and in which order heads add them up.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

NEGLIGIBLE = 2.0**-40


@dataclass(frozen=True)
class Placed:
    """Where one record goes."""

    row: int
    label: int
    member: int
    batch: int
    count: int  # used records of its owner
    sort_key: int


def cast(row: Sequence[float], double: bool) -> bytes:
    """Return the bytes of a record's features in the type of the model."""
    code = "d" if double else "f"
    numbers = [struct.unpack(f"<{code}", struct.pack(f"<{code}", value))[0] for value in row]
    numbers = [0.0 if abs(value) < NEGLIGIBLE else value for value in numbers]
    return struct.pack(f"<{len(numbers)}{code}", *numbers)


def keyed(code: bytes, seed: int, purpose: bytes) -> bytes:
    key = seed.to_bytes(16, "little")
    return hashlib.blake2b(code, digest_size=8, key=key, person=purpose).digest()


def part(code: bytes, parts: int, seed: int, purpose: bytes) -> int:
    return int.from_bytes(keyed(code, seed, purpose), "little") % parts


def sort_key(code: bytes, seed: int) -> int:
    return int.from_bytes(keyed(code, seed, b"order"), "little", signed=True)


def name(value: int | str) -> bytes:
    """Return an id or an owner as bytes."""
    return f"{'text' if isinstance(value, str) else 'number'}:{value}".encode()


def place(
    rows: Sequence[Sequence[float]],
    labels: Sequence[int],
    *,
    double: bool,
    seed: int,
    members: int,
    batches: int,
    ids: Sequence[int | str] | None = None,
    persons: Sequence[int | str] | None = None,
    most: int | None = None,
) -> list[Placed]:
    """Return where every record goes that is used, in the order of the rows."""
    contents = [
        hashlib.blake2b(cast(row, double) + label.to_bytes(8, "little")).digest()
        for row, label in zip(rows, labels, strict=True)
    ]
    placed = []
    for row, label in enumerate(labels):
        count = 1
        if persons is not None:
            owner = name(persons[row])
            own = [other for other in range(len(labels)) if persons[other] == persons[row]]
            if most is not None:
                own.sort(key=lambda each: (sort_key(contents[each], seed), contents[each]))
                own = own[:most]
            if row not in own:
                continue
            code, key, count = owner, owner + contents[row], len(own)
        else:
            code = contents[row] if ids is None else name(ids[row])
            key = code
        placed.append(
            Placed(
                row,
                label,
                part(code, members, seed, b"member"),
                part(code, batches, seed, b"batch"),
                count,
                sort_key(key, seed),
            )
        )
    return placed
