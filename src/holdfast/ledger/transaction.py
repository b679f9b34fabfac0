"""Transactions: read and verify the ledger, then charge and enter answers under its lock."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ..accounting.meter import Amount
from ..errors import BudgetExhausted, InvalidInput, TamperedLedger
from .accounts import Account, Books
from .entries import Entry, Head, follow, unmasked
from .safe import Safe, keyed_hash
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


class Transaction:
    """The books as they are, and the entries that are added to them. Sums are kept up with what is added."""

    def __init__(self, reader: Reader, key: bytes, writer: Writer) -> None:
        self.books, self.head, self._key, self._writer = reader.books, reader.head, key, writer
        self.added: list[Entry] = []
        self._ended = ""

    def close(self) -> None:
        """Accept no more entries. Raises InvalidInput if one was refused, because then none of them is written."""
        self.refuse_broken()
        self._ended = "the transaction has ended"

    def refuse_broken(self) -> None:
        """Raise InvalidInput if an entry was refused, even if that error was swallowed."""
        if self._ended:
            raise InvalidInput(f"{self._ended}; nothing was written")

    def afford(self, account: Account, amount: Amount, analyst: str, what: str, each: Amount | None = None) -> None:
        """Raise BudgetExhausted if the amount is not left; the message says what is, and how many of `each` would fit."""
        left = account.remaining(analyst)
        if amount.within(left):
            return
        shown, fits = account.terms.meter.shown, (each or amount).times_in(left)
        whose = f" for {analyst!r}, by a share" if left != account.remaining() else ""
        raise BudgetExhausted(
            f"{what} would cost {shown(amount.loss):g} in {account.terms.meter.name}"
            + (" and more delta than is left" if amount.leak > left.leak else "")
            + f"; left{whose} of the budget of {account.name!r}: {shown(max(0, left.loss)):g}"
            + (f", enough for {fits}" if each is not None else "")
            + ". Nothing was answered or charged; the owner may raise the budget (holdfast budget raise)"
        )

    def add(self, kind: str, dataset: str, analyst: str = "", amount: Amount = Amount(), **rest: Any) -> None:  # noqa: B008 (frozen)
        """Append an entry that takes the amount."""
        self.refuse_broken()
        time_now = datetime.now(UTC).isoformat(timespec="milliseconds")
        rest |= {"loss": str(amount.loss), "leak": str(amount.leak)}
        if rest.get("label") is not None:
            rest["about"] = _with_nonce(rest.get("about", ""))
        entry = Entry(self.head.number + 1, time_now, kind, dataset, analyst, **rest)
        entry = entry._replace(seal=entry.sealed(self._key, self.head.seal))
        self.added.append(entry)
        self._ended = f"entry {entry.number} was refused"
        self.books.enter(entry)
        self._ended = ""
        self.head = Head(entry.number, entry.seal)

    def hashed(self, *parts: bytes) -> bytes:
        """Return the keyed hash of the parts, as `Ledger.hasher` makes it."""
        return keyed_hash(self._key, *parts)

    def entries(self) -> list[Entry]:
        """Return all entries, read again and verified."""
        return everything(self._writer, self._key)


def _with_nonce(about: str) -> str:
    """Add a nonce to what an entry says: with it, its label is masked in the database."""
    nonce = secrets.token_hex(8)
    return json.dumps({**json.loads(about), "nonce": nonce}) if about else f'{{"nonce": "{nonce}"}}'


class Spoiled(Exception):
    """A request failed after it had added entries: nothing of the transaction may be written."""


class Request:
    """Work that one thread wants done in a transaction. Threads that wait together share one."""

    def __init__(self, work: Callable[[Transaction], Any]) -> None:
        self._work = work
        self.ended = False
        self.result: Any = None
        self.error: Exception | None = None
        self.safe: Safe | None = None  # of the ledger, as it was open then
        self.head = Head()  # the end of the ledger as the work saw and left it
        self.on_disk = False  # whether all entries up to there are known to be

    def run(self, transaction: Transaction) -> None:
        """Do the work. An error of its own ends this request alone, unless entries were added before it.

        Raises:
            Spoiled: If the work failed after it had added entries.
        """
        before = len(transaction.added)
        try:
            self.result, self.error = self._work(transaction), None
            transaction.refuse_broken()
        except Exception as error:
            self.result, self.error = None, error
            if len(transaction.added) > before:
                self.ended = True
                raise Spoiled from error

    def end(self, safe: Safe, head: Head, on_disk: bool) -> None:
        """Note how the transaction ended."""
        self.safe, self.head, self.on_disk, self.ended = safe, head, on_disk, True
