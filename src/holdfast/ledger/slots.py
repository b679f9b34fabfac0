"""Slots: small sealed records of the ledger's last entry, in files outside the database.

A file has one or two slots. Each holds the number and seal of an entry, the location of the
database, and a keyed hash of all three. Files are locked with `flock`, which also makes processes
wait in order.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InvalidInput, LedgerUnavailable, TamperedLedger
from .entries import Head

_LOCK_OWNER_THREADS: dict[Path, int] = {}  # the thread of this process that holds a file's lock

SLOT_BYTES = 2048
"""Bytes per slot."""


class Totals(NamedTuple):
    """What was spent of a budget, and what it allows, in whole units of its meter."""

    loss: int
    leak: int
    beyond: int
    limit_loss: int
    limit_leak: int
    closed: bool


@dataclass(frozen=True)
class Slot:
    """The content of a slot: an entry, the place of its database, and totals after the entry.

    Totals are there for as many data sets as fit; a restored backup is charged by them.
    """

    head: Head
    place: str
    totals: dict[str, Totals]

    @cached_property  # it is written to two files
    def text(self) -> bytes:
        """The content as JSON, with as many totals as fit."""
        start = (
            f'{{"number": {self.head.number}, "seal": "{self.head.seal}", '
            f'"place": {_quoted(self.place)}, "totals": {{'
        ).encode()
        room = SLOT_BYTES - 100 - len(start)
        if room < 0:
            raise InvalidInput(
                f"{self.place[:60]}...: the path of the database is too long; shorten it"
            )
        parts = []
        for name, (*amounts, closed) in self.totals.items():
            ends = "true" if closed else "false"
            part = f"{_quoted(name)}: [{', '.join(map(str, amounts))}, {ends}]"
            room -= len(part) + 2
            if room < 0:
                break
            parts.append(part)
        return start + ", ".join(parts).encode() + b"}}"


class SlotFile:
    """A file of slots, kept open. One thread at a time may hold its lock; any thread may read.

    Guarantees:
        `read` returns only complete slots that were written with the key; a slot that is being
        written, or was torn by a power cut, reads as None.
    """

    def __init__(self, path: Path, key: bytes, create: bool = False) -> None:
        self.path, self._key, self._create = path, key, create
        self._file, self._process = -1, 0
        # The last bytes of each slot, and what was parsed from them.
        self._known: dict[int, tuple[bytes, Slot | None]] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, after waiting for other processes and other objects of this class."""
        if _LOCK_OWNER_THREADS.get(self.path) == threading.get_ident():
            raise InvalidInput(
                f"{self.path}: this thread holds the ledger already; "
                "end that transaction before starting another"
            )
        file, process = self._descriptor(), os.getpid()
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                raise LedgerUnavailable(
                    f"{self.path}: cannot be locked ({error}); nothing was answered"
                ) from error
            _LOCK_OWNER_THREADS[self.path] = threading.get_ident()
            yield
        finally:
            # A child forked in the meantime shares the lock, and must leave it to the parent.
            if process == os.getpid():
                _LOCK_OWNER_THREADS.pop(self.path, None)
                fcntl.flock(file, fcntl.LOCK_UN)

    def read(self, slot: int) -> Slot | None:
        """Return what a slot holds; None if it is empty, damaged or written with another key."""
        try:
            content = os.pread(self._descriptor(), SLOT_BYTES, slot * SLOT_BYTES)
        except OSError as error:
            raise LedgerUnavailable(
                f"{self.path}: cannot be read ({error}); nothing was answered"
            ) from error
        known, parsed = self._known.get(slot, (b"", None))
        if content != known:
            parsed = self._parsed(content)
            self._known[slot] = (content, parsed)
        return parsed

    def write(self, slot: int, content: Slot, flush: bool = False) -> None:
        """Write a slot; with `flush`, wait until it is on disk."""
        sealed = sealed_slot(self._key, content)
        try:
            if os.pwrite(self._descriptor(), sealed, slot * SLOT_BYTES) != SLOT_BYTES:
                raise OSError("only a part was written")
            if flush:
                os.fsync(self._file)
        except OSError as error:
            raise LedgerUnavailable(
                f"{self.path}: cannot be written ({error}); nothing was answered; ask again"
            ) from error
        self._known[slot] = (sealed, content)

    def close(self) -> None:
        """Close the file.

        In a forked child, this leaves the parent's lock in place; the child no longer shares it.
        """
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):
            self.close()

    def _descriptor(self) -> int:
        """Return the descriptor of the open file.

        The file is opened again if it was deleted or replaced, and in a forked child, which needs
        locks of its own.
        """
        if self._file >= 0 and self._process == os.getpid() and os.fstat(self._file).st_nlink:
            return self._file
        self.close()
        try:
            self._file = os.open(
                self.path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if self._create else 0), 0o600
            )
        except FileNotFoundError:
            raise TamperedLedger(
                f"{self.path}: the ledger's head, kept outside the database, is gone; "
                "restore it from a copy"
            ) from None
        except OSError as error:
            raise LedgerUnavailable(
                f"{self.path}: cannot be opened ({error}); nothing was answered"
            ) from error
        self._process = os.getpid()
        return self._file

    def _parsed(self, content: bytes) -> Slot | None:
        about = parse_slot(content)
        if about is None or not hmac.compare_digest(
            _slot_hash(self._key, about["text"]), about["mark"]
        ):
            return None
        totals = {name: Totals(*each) for name, each in about["totals"].items()}
        return Slot(Head(about["number"], about["seal"]), about["place"], totals)


def sealed_slot(key: bytes, slot: Slot) -> bytes:
    """Return the bytes of a sealed slot."""
    return (_slot_hash(key, slot.text) + b" " + slot.text + b"\n").ljust(SLOT_BYTES, b"\0")


@lru_cache(maxsize=64)
def _quoted(text: str) -> str:
    return json.dumps(text)


def parse_slot(content: bytes) -> dict[str, Any] | None:
    """Return the fields of a slot, without checking its keyed hash; None if it is not readable."""
    mark, _, text = content.partition(b"\n")[0].partition(b" ")
    try:
        about = json.loads(text)
        found = {name: about[name] for name in ("number", "seal", "place")}
        return {**found, "totals": about.get("totals", {}), "text": text, "mark": mark}
    except (ValueError, TypeError, KeyError):
        return None


def _slot_hash(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256").hex().encode()
