"""Checkpoints: the sums of the first entries, so that a process need not read them all again.

A page holds three numbers of 8 bytes for each of 4,096 entries: the first bytes of its seal, and
fingerprints of its question and of its request. All processes keep in memory the first bytes of the
seals, and the first half of each fingerprint with the number of its entry. So recorded answers are
found by the numbers of their entries and read from the database, and a process can tell whether an
old entry that it reads is the one that was written.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .accounts import Accounts, request_of
from .entries import ANSWER, PAGE, Entry, Head
from .key_store import keyed_hash

_RECORD = np.dtype([("seal", "<u8"), ("answer", "<u8"), ("request", "<u8")])
_KINDS = ("answer", "request")
_FIRST_HALF, _SECOND_HALF = np.uint64(0xFFFFFFFF00000000), np.uint64(0xFFFFFFFF)
Keys = NDArray[np.uint64]


def answer_key(dataset: str, analyst: str, question: str) -> int:
    """Return a fingerprint of a question, never 0."""
    return _fingerprint("answer", dataset, analyst, question)


def request_key(dataset: str, tag: str) -> int:
    """Return a fingerprint of a request that may be retried, never 0."""
    return _fingerprint("request", dataset, tag)


def _fingerprint(*parts: str) -> int:
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def _packed(keys: Keys, first: int) -> Keys:
    """Return the fingerprints of the entries from number `first` on, each with that number.

    A number of 8 bytes holds the first half of a fingerprint and the number of its entry, so that
    sorting them needs no other memory; numbers stay far below 2**32, which would be 32 GB of seals.
    The fingerprint 0 stands for none.
    """
    places = np.flatnonzero(keys).astype(np.uint64)
    return (keys[places] & _FIRST_HALF) | (places + np.uint64(first))


def _merged(packed: Keys, more: Keys) -> Keys:
    return np.insert(packed, np.searchsorted(packed, more), more)


def _numbers_in(packed: Keys, keys: Sequence[int]) -> list[list[int]]:
    """Return for each fingerprint the numbers of the entries that may have it."""
    starts = np.array(keys, np.uint64) & _FIRST_HALF
    ranges = np.searchsorted(packed, [starts, starts | _SECOND_HALF]).T.tolist()
    return [(packed[start:end] & _SECOND_HALF).tolist() for start, end in ranges]


class EntryIndex:
    """What every process keeps of all entries.

    One thread adds entries; others may look them up meanwhile.

    Guarantees:
        `find` returns the number of every entry with the fingerprint, and rarely that of another.
    """

    def __init__(self) -> None:
        self.digests: list[str] = []  # of the complete pages
        self._seals: list[Keys] = []
        self._sorted = dict.fromkeys(_KINDS, np.empty(0, np.uint64))  # see `_packed`
        self._tail: list[tuple[int, int, int]] = []  # of the entries behind the complete pages
        self._recent: dict[str, dict[int, list[int]]] = {kind: {} for kind in _KINDS}

    @classmethod
    def of_pages(cls, digests: Sequence[str], pages: Iterable[bytes]) -> EntryIndex | None:
        """Return the index of complete pages; None if they are not those with these digests."""
        index = cls()
        seals = np.empty((len(digests), PAGE), np.uint64)
        packed = {kind: np.empty(PAGE * len(digests), np.uint64) for kind in _KINDS}
        used = dict.fromkeys(_KINDS, 0)
        for page, digest in zip(pages, digests, strict=False):
            if hashlib.sha256(page).hexdigest() != digest:
                return None
            records, place = np.frombuffer(page, _RECORD), len(index.digests)
            seals[place] = records["seal"]
            for kind in _KINDS:
                some = _packed(records[kind], PAGE * place + 1)
                packed[kind][used[kind] : used[kind] + len(some)] = some
                used[kind] += len(some)
            index.digests.append(digest)
        if len(index.digests) < len(digests):
            return None
        index._seals = list(seals)
        for kind, keys in packed.items():
            keys = keys if used[kind] == len(keys) else keys[: used[kind]].copy()
            keys.sort()
            index._sorted[kind] = keys
        return index

    def add(self, entry: Entry) -> dict[int, bytes]:
        """Add the next entry; return the contents of the pages that it completes, by number.

        Numbers that are missing before it, in a restored ledger, count as entries without anything.
        """
        completed: dict[int, bytes] = {}
        while PAGE * len(self._seals) + len(self._tail) + 1 < entry.number:
            completed |= self._append((0, 0, 0))
        request = request_of(entry)
        answer = entry.kind == ANSWER
        record = (
            int.from_bytes(bytes.fromhex(entry.seal[:16]), "little"),
            answer_key(entry.dataset, entry.analyst, entry.question) if answer else 0,
            0 if request is None else request_key(entry.dataset, request[0]),
        )
        for kind, key in zip(_KINDS, record[1:], strict=True):
            if key:
                self._recent[kind].setdefault(key, []).append(entry.number)
        return completed | self._append(record)

    def _append(self, record: tuple[int, int, int]) -> dict[int, bytes]:
        self._tail.append(record)
        return self._complete() if len(self._tail) == PAGE else {}

    def _complete(self) -> dict[int, bytes]:
        records = np.array(self._tail, _RECORD)
        content = records.tobytes()
        first = PAGE * len(self._seals) + 1
        self._sorted = {
            kind: _merged(self._sorted[kind], np.sort(_packed(records[kind], first)))
            for kind in _KINDS
        }
        self._recent = {kind: {} for kind in _KINDS}
        self._seals.append(records["seal"].copy())
        self._tail = []
        self.digests.append(hashlib.sha256(content).hexdigest())
        return {len(self.digests) - 1: content}

    def find(self, kind: str, keys: Sequence[int]) -> list[list[int]]:
        """Return for each fingerprint the numbers of the entries that have it."""
        recent, known = self._recent[kind], self._sorted[kind]  # in this order: see `_complete`
        if not len(known):
            return [list(recent.get(key, ())) for key in keys]
        return [
            numbers + [number for number in recent.get(key, ()) if number not in numbers]
            for key, numbers in zip(keys, _numbers_in(known, keys), strict=True)
        ]

    def last_up_to(self, number: int) -> int:
        """Return the largest number of an entry that is at most `number`; 0 if there is none."""
        while number > 0 and self._seal(number) == 0:
            number -= 1
        return max(0, number)

    def has_seal(self, number: int, seal: str) -> bool:
        """Return whether a seal begins as that of the entry with this number did."""
        try:
            return self._seal(number) == int.from_bytes(bytes.fromhex(seal[:16]), "little") != 0
        except (IndexError, ValueError):
            return False

    def _seal(self, number: int) -> int:
        page, place = divmod(number - 1, PAGE)
        complete = page < len(self._seals)
        return int(self._seals[page][place]) if complete else self._tail[place][0]


@dataclass(frozen=True)
class Checkpoint:
    """The sums of the entries up to `head`, the digests of their pages, and pages to be stored."""

    head: Head
    books: str  # JSON
    digests: tuple[str, ...]
    pages: dict[int, bytes] = field(default_factory=dict)

    def masked(self, key: bytes) -> tuple[str, bytes, str]:
        """Return nonce, content and seal as they are stored.

        Guarantees:
            Without the key, the content is uniformly random bits. The seal is in a domain of its
            own: it is no seal of an entry, a head or a hash of another kind.
        """
        nonce = secrets.token_hex(16)
        about = {"head": self.head, "digests": self.digests, "books": json.loads(self.books)}
        content = _flip(json.dumps(about).encode(), key, nonce)
        return nonce, content, _seal(key, nonce, content)


def unmask_checkpoint(key: bytes, nonce: str, content: bytes, seal: str) -> Checkpoint | None:
    """Return a stored checkpoint, or None if it is not what was written."""
    if not hmac.compare_digest(_seal(key, str(nonce), content).encode(), str(seal).encode()):
        return None
    about: dict[str, Any] = json.loads(_flip(content, key, nonce))
    return Checkpoint(Head(*about["head"]), json.dumps(about["books"]), tuple(about["digests"]))


def _flip(content: bytes, key: bytes, nonce: str) -> bytes:
    pad = hashlib.shake_256(keyed_hash(key, b"checkpoint mask", nonce.encode()))
    mask = np.frombuffer(pad.digest(len(content)), np.uint8)
    return bytes(np.frombuffer(content, np.uint8) ^ mask)


def _seal(key: bytes, nonce: str, content: bytes) -> str:
    return keyed_hash(key, b"checkpoint", nonce.encode(), content).hex()


def books_of(checkpoint: Checkpoint) -> Accounts:
    """Return the accounts that a checkpoint holds."""
    return Accounts.from_dict(json.loads(checkpoint.books))
