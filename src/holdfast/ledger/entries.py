"""Entries: the lines of the ledger. Each is sealed with the owner's key together with the seal of the line before it."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable
from typing import NamedTuple

from ..errors import TamperedLedger

GENESIS = ""
"""In place of a seal, before the first entry."""

GRANT, SHARE, SESSION, ANSWER = "grant", "share", "session", "answer"


class Entry(NamedTuple):
    """One line, as it is stored. Raw features, distances and true labels are never in it."""

    number: int  # 1, 2, 3, ...
    time: str
    kind: str
    dataset: str
    analyst: str = ""
    model: str = ""  # keyed hash
    question: str = ""  # keyed hash of the features, the model and the mechanism
    label: int | None = None  # the answer that was drawn; in the database it is masked
    loss: str = "0"  # digits: a whole number of units of the budget's meter
    leak: str = "0"
    about: str = ""  # JSON: the terms of a grant, a share, a session, the nonce of a masked label
    seal: str = ""

    def sealed(self, key: bytes, before: str) -> str:
        """The seal that belongs to this line after the line sealed with `before`."""
        text = _ENCODER.encode((before, self[:-1]))
        return hmac.digest(key, text.encode(), "sha256").hex()


def masked(entry: Entry, key: bytes) -> Entry:
    """Return an entry as it is stored: whoever keeps the database sees answers before they are charged, and must not read them.

    Guarantees:
        Without the key, and as long as no nonce comes twice with one number, what is stored of a label is a
        uniformly random number, in every attempt to store it.
    """
    return entry if entry.label is None else entry._replace(label=(entry.label + 1) ^ _pad(entry, key))


def unmasked(entry: Entry, key: bytes) -> Entry:
    """Return a stored entry with its label. What is not a masked entry stays as it is, and is judged by its seal."""
    try:
        return entry if entry.label is None else entry._replace(label=(entry.label ^ _pad(entry, key)) - 1)
    except (KeyError, TypeError, ValueError):
        return entry  # of a version that stored labels as they were, or not of ours


def _pad(entry: Entry, key: bytes) -> int:
    """Return 62 bits that follow from the key, the nonce and the entry's place."""
    text = _ENCODER.encode(("label", json.loads(entry.about)["nonce"], entry.number, entry.question))
    return int.from_bytes(hmac.digest(key, text.encode(), "sha256")[:8]) >> 2


COLUMNS = Entry._fields
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class Head(NamedTuple):
    """Where a ledger ends: its last entry's number and seal."""

    number: int = 0
    seal: str = GENESIS


def _fits(entry: Entry, key: bytes, before: Head) -> bool:
    try:
        return hmac.compare_digest(entry.sealed(key, before.seal).encode(), str(entry.seal).encode())
    except (TypeError, ValueError):
        return False  # of a type that is never written


def follow(head: Head, entries: Iterable[Entry], key: bytes) -> Head:
    """The head after the entries; raises TamperedLedger at the first that is not what was written after the one before it."""
    for entry in entries:
        if entry.number != head.number + 1:
            raise TamperedLedger(f"entry {head.number + 1} is missing: the next one there is has number {entry.number}")
        if not _fits(entry, key, head):
            raise TamperedLedger(f"entry {entry.number} is not what was written: it, or its place, does not match its seal")
        head = Head(entry.number, entry.seal)
    return head
