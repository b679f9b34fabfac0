"""Transactions: read and verify the ledger, then charge and enter answers under its lock."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from ..accounting.meter import NOTHING, Amount
from ..errors import BudgetExhausted, InvalidInput, TamperedLedger
from .accounts import Account, Books
from .entries import RELEASE, Entry, Head, unmask_answer, verify_chain
from .key_store import KeyStore, copied_ledger, keyed_hash
from .slots import Slot
from .writers import Writer

_ALWAYS_VERIFY_ALL = 64  # up to this many entries are all read again in every transaction
# At most one part in this many of the time is spent on reading all entries again.
_FULL_CHECK_INTERVAL = 100
_FIRST = -(2**63)  # below any valid number, so that foreign entries are read too
_KNOWN_SEALS = 4096  # of so many latest entries, the seals are kept in memory
_ROLLED_BACK_MESSAGE = (
    "the ledger was shortened or replaced by an old copy; restore the latest copy"
)


class Reader:
    """The entries of a ledger, verified and added up.

    Guarantees:
        The books contain exactly what the entries say. The seals of all entries were verified from
        the first on, and the head that is kept outside the database is among the entries.
    """

    def __init__(self) -> None:
        self.books, self.head = Books(), Head()
        self.seals: dict[int, str] = {}  # by number, of some verified entries
        self._last_full_check, self._full_check_seconds = -math.inf, 0.0

    def catch_up(self, writer: Writer, key: bytes, outside: Slot, place: str) -> None:
        """Read, verify and add up the entries that were written since the last transaction.

        Args:
            writer: The connection to the database.
            key: The owner's key.
            outside: The head outside the database, read before this transaction began.
            place: The location of the database.
        """
        entries = [unmask_answer(entry, key) for entry in self._new(writer)]
        head = verify_chain(self.head, entries, key)
        self.remember(entries)
        _refuse_rolled_back(self.seals, head, outside, place)
        if writer.modified_externally() and not entries:
            self._last_full_check = -math.inf  # somebody wrote something other than an entry
        if self.head.number:
            self._verify_all(writer, head, key)
        for entry in entries:
            self.books.enter(entry)
        self.head = head

    def remember(self, entries: Sequence[Entry]) -> None:
        """Keep the seals of the latest entries, which were verified and are in the database."""
        self.seals.update((entry.number, entry.seal) for entry in entries[-_KNOWN_SEALS:])
        while len(self.seals) > _KNOWN_SEALS:
            del self.seals[next(iter(self.seals))]

    def _new(self, writer: Writer) -> list[Entry]:
        if not self.head.number:
            return writer.begin(_FIRST)
        entries = writer.begin(self.head.number)
        if entries and (entries[0].number, entries[0].seal) == (self.head.number, self.head.seal):
            return entries[1:]
        raise TamperedLedger(
            f"entry {self.head.number}, "
            f"which was the last, is gone or changed: {_ROLLED_BACK_MESSAGE}"
        )

    def _verify_all(self, writer: Writer, head: Head, key: bytes) -> None:
        """Verify all entries from the first, unless that takes long and was done recently."""
        now = time.monotonic()
        if (
            head.number > _ALWAYS_VERIFY_ALL
            and now - self._last_full_check < _FULL_CHECK_INTERVAL * self._full_check_seconds
        ):
            return
        if verify_chain(Head(), _all(writer, key), key) != head:
            raise TamperedLedger(
                f"the entries do not end with entry {head.number}: {_ROLLED_BACK_MESSAGE}"
            )
        self._last_full_check = time.monotonic()
        self._full_check_seconds = self._last_full_check - now


def read_and_verify_all(writer: Writer, key: bytes) -> list[Entry]:
    """Return all entries, verified from the first."""
    entries = _all(writer, key)
    verify_chain(Head(), entries, key)
    return entries


def _all(writer: Writer, key: bytes) -> list[Entry]:
    return [unmask_answer(entry, key) for entry in writer.entries(_FIRST)]


def _refuse_rolled_back(seals: dict[int, str], head: Head, outside: Slot, place: str) -> None:
    """Raise TamperedLedger if the head outside the database is known not to be among the entries.

    An entry whose seal is not in memory is looked up when the head is advanced.
    """
    number, seal = outside.head
    if number <= head.number and seals.get(number, seal) == seal:
        return
    if outside.place != place:
        raise copied_ledger(place, outside)
    if number > head.number:
        raise TamperedLedger(
            f"the ledger ends with entry {head.number}, but entry {number} has been "
            f"written: {_ROLLED_BACK_MESSAGE}"
        )
    raise TamperedLedger(
        f"entry {number} differs from the one that was written: {_ROLLED_BACK_MESSAGE}"
    )


class Transaction:
    """The current books and the entries added to them; the books include what was added."""

    def __init__(self, reader: Reader, key: bytes, writer: Writer) -> None:
        self.books, self.head, self._key, self._writer = reader.books, reader.head, key, writer
        self.added: list[Entry] = []
        self._ended = ""

    @property
    def database_error(self) -> type[Exception]:
        """The class of all errors of the database's driver."""
        return self._writer.error

    def close(self) -> None:
        """Accept no more entries.

        Raises:
            InvalidInput: If an entry was refused, because then no entry is written.
        """
        self.refuse_if_ended()
        self._ended = "the transaction has ended"

    def refuse_if_ended(self) -> None:
        """Raise InvalidInput if the transaction has ended or an entry was refused.

        A refused entry counts even if its error was caught.
        """
        if self._ended:
            raise InvalidInput(f"{self._ended}; nothing was written")

    def require_affordable(
        self, account: Account, amount: Amount, analyst: str, what: str, each: Amount | None = None
    ) -> None:
        """Raise BudgetExhausted if less than the amount is left.

        The message says what is left and, if `each` is given, how many of those would fit.
        """
        left = account.remaining(analyst)
        if account.closed:
            raise BudgetExhausted(
                f"the budget of {account.name!r} was closed (reason: {account.closed}); nothing "
                "was answered or charged; recorded answers are still free to ask for"
            )
        if amount.within(left):
            return
        shown, fits = account.terms.meter.as_float, (each or amount).times_in(left)
        whose = f" for {analyst!r}, by a share" if left != account.remaining() else ""
        raise BudgetExhausted(
            f"{what} would cost {shown(amount.loss):g} in {account.terms.meter.name}"
            + (" and more delta than is left" if amount.leak > left.leak else "")
            + f"; left{whose} of the budget of {account.name!r}: {shown(max(0, left.loss)):g}"
            + (f", enough for {fits}" if each is not None else "")
            + ". Nothing was answered or charged; the owner may raise the budget "
            "(holdfast budget raise)"
        )

    def add(
        self, kind: str, dataset: str, analyst: str = "", amount: Amount = NOTHING, **rest: Any
    ) -> None:
        """Append an entry that charges the amount.

        Entries with a label, and releases, get a nonce, with which they are masked.
        """
        self.refuse_if_ended()
        time_now = datetime.now(UTC).isoformat(timespec="milliseconds")
        rest |= {"loss": str(amount.loss), "leak": str(amount.leak)}
        if rest.get("label") is not None or kind == RELEASE:
            rest["about"] = _with_nonce(rest.get("about", ""))
        entry = Entry(self.head.number + 1, time_now, kind, dataset, analyst, **rest)
        entry = entry._replace(seal=entry.compute_seal(self._key, self.head.seal))
        self.added.append(entry)
        self._ended = f"entry {entry.number} was refused"
        self.books.enter(entry)
        self._ended = ""
        self.head = Head(entry.number, entry.seal)

    def keyed_hash(self, *parts: bytes) -> bytes:
        """Return the keyed hash of the parts, as `Ledger.hasher` computes it."""
        return keyed_hash(self._key, *parts)

    def entries(self) -> list[Entry]:
        """Return all entries, read again and verified."""
        return read_and_verify_all(self._writer, self._key)


def _with_nonce(about: str) -> str:
    """Add a nonce, with which the answer is masked in the database, to an entry's JSON."""
    nonce = secrets.token_hex(8)
    return json.dumps({**json.loads(about), "nonce": nonce}) if about else f'{{"nonce": "{nonce}"}}'


class TransactionAborted(Exception):
    """A request failed after adding entries, so nothing of the transaction may be written."""


class Request:
    """Work that a thread wants done in a transaction. Waiting threads share a transaction."""

    def __init__(self, work: Callable[[Transaction], Any]) -> None:
        self._work = work
        self.ended = False
        self.result: Any = None
        self.error: Exception | None = None
        self.key_store: KeyStore | None = None  # the ledger's key store during the transaction
        self.reader = Reader()  # the one that has read what the work saw
        self.head = Head()  # the end of the ledger after the transaction
        self.on_disk = False  # whether all entries up to `head` are known to be on disk

    def run(self, transaction: Transaction) -> None:
        """Do the work, and keep its result or its error.

        An error concerns this request alone, unless the work had added entries before it.

        Raises:
            TransactionAborted: If the work failed after adding entries.
            Exception: If the database failed, as the driver says it.
        """
        before = len(transaction.added)
        try:
            self.result, self.error = self._work(transaction), None
            transaction.refuse_if_ended()
        except transaction.database_error:
            raise  # the transaction itself has failed, for all requests
        except Exception as error:
            self.result, self.error = None, error
            if len(transaction.added) > before:
                self.ended = True
                raise TransactionAborted from error

    def end(self, key_store: KeyStore, reader: Reader, head: Head, on_disk: bool) -> None:
        """Record how the transaction ended."""
        self.key_store, self.reader, self.head = key_store, reader, head
        self.on_disk, self.ended = on_disk, True
