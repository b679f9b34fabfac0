"""Verification: read entries again, in pages, and check that they are what was written.

A page is a short read outside the lock of the ledger: the chain of seals needs no snapshot, and a
long reader would keep SQLite's log from being truncated.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator

from ..errors import LedgerUnavailable, TamperedLedger
from .database import Database
from .entries import FIRST, Entry, Head, unmask_answer, verify_chain
from .transaction import Reader

_ROWS = 256  # entries that are verified at once while answers are given
_INTERVAL = 100  # at most one part in this many of the time is spent on verifying again


def read_verified(
    database: Database, reader: Reader, key: bytes, after: Head, last: int, rows: int
) -> Iterator[list[Entry]]:
    """Yield the entries behind `after`, up to number `last`, in pages.

    Args:
        database: The database.
        reader: Knows how the seals of all these entries begin.
        key: The owner's key.
        after: The entry behind which to begin, verified; Head() for the first.
        last: The number of the last entry.
        rows: The most entries in a page.

    Raises:
        TamperedLedger: If an entry is gone or is not the one that was written.
    """
    while after.number < last:
        stored = database.look_up(after.number + 1 if after.number else FIRST, last, rows)
        if not stored:
            raise TamperedLedger(f"entry {after.number + 1} is gone; restore the latest copy")
        entries = [unmask_answer(entry, key) for entry in stored]
        after = verify_chain(after, entries, key)
        if not reader.index.has_seal(*after):
            raise TamperedLedger(
                f"entry {after.number} is not the one that was written with this number: another "
                "attempt to write it took its place; restore the latest copy"
            )
        yield entries


class RunningVerification:
    """Verifies all entries again and again, a few at a time, while the ledger is used.

    Guarantees:
        Once an entry was found that is not what was written, nothing is answered by this process.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._verified, self._last = Head(), 0  # how far this pass has come, and where it ends
        self._next = -math.inf  # when to go on
        self._damage: TamperedLedger | None = None

    def refuse_if_damaged(self) -> None:
        """Raise the error that was found."""
        if self._damage is not None:
            raise TamperedLedger(str(self._damage))

    def step(self, database: Database, reader: Reader, key: bytes, last: int) -> None:
        """Verify the next entries up to number `last`, unless that was done just now.

        Raises:
            TamperedLedger: If one is gone or is not the one that was written.
        """
        if time.monotonic() < self._next or not self._turn.acquire(blocking=False):
            return
        try:
            began = time.monotonic()
            if self._verified.number >= self._last:  # the end was set when the pass began
                self._verified, self._last = Head(), min(last, reader.head.number)
            end = min(self._last, reader.head.number)
            pages = read_verified(database, reader, key, self._verified, end, _ROWS)
            for entries in pages:
                self._verified = Head(entries[-1].number, entries[-1].seal)
                break
            self._next = time.monotonic() + _INTERVAL * (time.monotonic() - began)
        except LedgerUnavailable:
            pass  # nothing was found out; the next transaction goes on
        except TamperedLedger as error:
            self._damage = error
            raise
        finally:
            self._turn.release()
