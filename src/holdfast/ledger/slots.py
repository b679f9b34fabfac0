"""Slots: small sealed notes in files outside the database, of which entry is the last.

A file has one or two slots, each with the number and seal of an entry, the place of the database, and a keyed hash over
all three. Files are locked by `flock`, which also makes processes wait in order.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import InvalidInput, LedgerUnavailable, TamperedLedger
from .entries import Head

_HOLDERS: dict[Path, int] = {}  # which thread of this process holds the lock of a file

SLOT = 2048
"""Bytes per slot."""


class SlotFile:
    """A file of slots, kept open. One thread at a time may hold its lock; any may read.

    Guarantees:
        `read` returns only what was written with the key, whole; a slot that is being written, or was written
        when the power went, reads as None.
    """

    def __init__(self, path: Path, key: bytes, create: bool = False) -> None:
        self.path, self._key, self._create = path, key, create
        self._file, self._process = -1, 0
        self._known: dict[int, tuple[bytes, Head | None]] = {}  # what each slot held last, and what that means

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Wait until no other process, and no other object of this class, holds the lock; and hold it."""
        if _HOLDERS.get(self.path) == threading.get_ident():
            raise InvalidInput(f"{self.path}: this thread holds the ledger already; end that transaction before another begins")
        file, process = self._opened(), os.getpid()
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                raise LedgerUnavailable(f"{self.path}: cannot be locked ({error}); nothing was answered") from error
            _HOLDERS[self.path] = threading.get_ident()
            yield
        finally:
            if process == os.getpid():  # a child that was forked meanwhile shares the lock, and must leave it to the parent
                _HOLDERS.pop(self.path, None)
                fcntl.flock(file, fcntl.LOCK_UN)

    def read(self, slot: int) -> Head | None:
        """Return what a slot holds; None if it is empty, damaged or written with another key."""
        try:
            content = os.pread(self._opened(), SLOT, slot * SLOT)
        except OSError as error:
            raise LedgerUnavailable(f"{self.path}: cannot be read ({error}); nothing was answered") from error
        known, head = self._known.get(slot, (b"", None))
        if content != known:
            head = self._parsed(content)
            self._known[slot] = (content, head)
        return head

    def write(self, slot: int, head: Head, place: str, flush: bool = False) -> None:
        """Write a slot. `flush`: wait until it is on disk."""
        content = sealed_slot(self._key, head, place)
        try:
            if os.pwrite(self._opened(), content, slot * SLOT) != SLOT:
                raise OSError("written in part only")
            if flush:
                os.fsync(self._file)
        except OSError as error:
            raise LedgerUnavailable(f"{self.path}: cannot be written ({error}); nothing was answered; ask again") from error
        self._known[slot] = (content, head)

    def close(self) -> None:
        """Let go of the file. In a forked child this leaves the parent's lock as it is, and keeps the child from holding it."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):
            self.close()

    def _opened(self) -> int:
        """Return the open file; opens it anew if another took its place, or in a forked child, whose locks must be its own."""
        if self._file >= 0 and self._process == os.getpid() and os.fstat(self._file).st_nlink:
            return self._file
        self.close()
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if self._create else 0), 0o600)
        except FileNotFoundError:
            raise TamperedLedger(f"{self.path}: the ledger's head, kept outside the database, is gone; restore it") from None
        except OSError as error:
            raise LedgerUnavailable(f"{self.path}: cannot be opened ({error}); nothing was answered") from error
        self._process = os.getpid()
        return self._file

    def _parsed(self, content: bytes) -> Head | None:
        about = parse_slot(content)
        if about is None or not hmac.compare_digest(_mark(self._key, about["text"]), about["mark"]):
            return None
        return Head(about["number"], about["seal"])


def sealed_slot(key: bytes, head: Head, place: str) -> bytes:
    """Return a slot as it is written."""
    text = f'{{"number": {head.number}, "seal": "{head.seal}", "place": {_quoted(place)}}}'.encode()
    if len(text) > SLOT - 100:
        raise InvalidInput(f"{place[:60]}...: the path of the database is too long; move it")
    return (_mark(key, text) + b" " + text + b"\n").ljust(SLOT, b"\0")


@lru_cache(maxsize=16)
def _quoted(text: str) -> str:
    return json.dumps(text)


def parse_slot(content: bytes) -> dict[str, Any] | None:
    """Return what a slot says, its seal not yet checked; None if it says nothing."""
    mark, _, text = content.partition(b"\n")[0].partition(b" ")
    try:
        about = json.loads(text)
        return {name: about[name] for name in ("number", "seal", "place")} | {"text": text, "mark": mark}
    except (ValueError, TypeError, KeyError):
        return None


def _mark(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256").hex().encode()
