"""Reader: what a process knows of the ledger, brought up to date and verified at the beginning of every transaction."""

from __future__ import annotations

import math
import time

from ..errors import TamperedLedger
from .books import Books
from .entries import Entry, Head, follow, unmasked
from .writers import Writer

_ALWAYS = 64  # entries: so few are all read again in every transaction
_PART = 100  # of the time, at most one part goes into reading all entries again
_FIRST = -(2**63)  # below any number, so that an entry that does not belong is seen too
_REWOUND = "the ledger was shortened, or an old copy was put in its place; restore the latest copy"


class Reader:
    """All entries, verified and added up.

    Guarantees
    ----------
    The books hold what the entries say and nothing else; every entry was followed from the first on, and the head that
    was kept outside the database is among them.
    """

    def __init__(self) -> None:
        self.books, self.head = Books(), Head()
        self._passed, self._took = -math.inf, 0.0

    def catch_up(self, writer: Writer, key: bytes, outside: Head) -> None:
        """Read, verify and add up what was written since the last transaction. `outside`: the head, read before that began."""
        entries = [unmasked(entry, key) for entry in self._new(writer)]
        head = follow(self.head, entries, key)
        _refuse_rewound(self.head, entries, head, outside)
        if writer.modified_externally() and not entries:
            self._passed = -math.inf  # somebody wrote, and it was not an entry
        if self.head.number:
            self._read_again(writer, head, key)
        for entry in entries:
            self.books.enter(entry)
        self.head = head

    def _new(self, writer: Writer) -> list[Entry]:
        if not self.head.number:
            return writer.begin(_FIRST)
        entries = writer.begin(self.head.number)
        if entries and (entries[0].number, entries[0].seal) == (self.head.number, self.head.seal):
            return entries[1:]
        raise TamperedLedger(f"entry {self.head.number}, which was the last, is gone or changed: {_REWOUND}")

    def _read_again(self, writer: Writer, head: Head, key: bytes) -> None:
        """Follow the chain from its beginning, unless that was done lately and takes long."""
        now = time.monotonic()
        if head.number > _ALWAYS and now - self._passed < _PART * self._took:
            return
        if follow(Head(), _all(writer, key), key) != head:
            raise TamperedLedger(f"the entries end with another one than entry {head.number}: {_REWOUND}")
        self._passed = time.monotonic()
        self._took = self._passed - now


def everything(writer: Writer, key: bytes) -> list[Entry]:
    """All entries, followed from the first."""
    entries = _all(writer, key)
    follow(Head(), entries, key)
    return entries


def _all(writer: Writer, key: bytes) -> list[Entry]:
    return [unmasked(entry, key) for entry in writer.entries(_FIRST)]


def _refuse_rewound(known: Head, entries: list[Entry], head: Head, outside: Head) -> None:
    """Raise where the head that was kept outside is not among the entries."""
    if outside.number > head.number:
        raise TamperedLedger(f"the ledger ends with entry {head.number}, and entry {outside.number} has been written: {_REWOUND}")
    seals = {known.number: known.seal} | {entry.number: entry.seal for entry in entries}
    if seals.get(outside.number, outside.seal) != outside.seal:
        raise TamperedLedger(f"entry {outside.number} is another than the one that was written: {_REWOUND}")
