"""Transactions: read and verify the ledger, then charge and enter answers under its lock."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..accounting.renyi import ZERO, Amount
from ..errors import BudgetExhausted, InvalidInput, TamperedLedger
from .accounts import Account, Accounts, RetriableRequest, request_of
from .checkpoints import Checkpoint, EntryIndex, answer_key, books_of, request_key
from .database import Writer
from .entries import (
    ANSWER,
    FIRST,
    PAGE,
    RELEASE,
    RESTORE,
    Entry,
    Head,
    unmask_answer,
    verify_chain,
)
from .key_store import KeyStore, Slot, copied_ledger, keyed_hash

_ALWAYS_VERIFY_ALL = 64  # up to this many entries are all read again in every transaction
_ROLLED_BACK_MESSAGE = (
    "the ledger was shortened or replaced by an old copy; restore the latest copy"
)
Fetch = Callable[[Sequence[int]], list[Entry]]
"""Returns the stored entries with these numbers, as far as there are any."""


@dataclass
class Standing:
    """An account, and what is recorded of one request.

    Attributes:
        account: The account.
        labels: The recorded answers, by question.
        request: What was charged for the request before, if it is retried.
    """

    account: Account
    labels: dict[str, int]
    request: RetriableRequest | None = None


class Reader:
    """The entries of a ledger, verified and added up.

    Guarantees:
        The books contain exactly what the entries say. The seals of all entries were verified from
        the first on, by this process or by the one that made the checkpoint it began with; and the
        head that is kept outside the database is among the entries.
    """

    def __init__(self) -> None:
        self.books, self.head, self.index = Accounts(), Head(), EntryIndex()
        self.ahead = Head()  # an entry that follows, which was not added up yet
        self.rebuild = False  # whether the stored checkpoint is damaged, and is to be replaced
        self.complete = False  # whether it has read all entries in a transaction before
        self.due: Checkpoint | None = None  # to be stored once the head covers it
        self._recent: dict[int, Entry] = {}
        self._pages: dict[int, bytes] = {}  # complete, and not known to be stored

    def begin_with(self, checkpoint: Checkpoint, index: EntryIndex) -> None:
        """Begin with the sums of a checkpoint instead of the first entry."""
        self.books, self.index, self.head = books_of(checkpoint), index, checkpoint.head

    def read_page(self, stored: Sequence[Entry], key: bytes) -> None:
        """Verify and add up entries that were read outside a transaction, and that are on disk."""
        entries = [unmask_answer(entry, key) for entry in stored]
        verify_chain(self.head, entries, key)
        for entry in entries:
            self.enter(entry)
        self.trim()

    def catch_up(self, writer: Writer, key: bytes, outside: Slot, place: str) -> None:
        """Read, verify and add up the entries that were written since the last transaction.

        Args:
            writer: The connection to the database.
            key: The owner's key.
            outside: The head outside the database, read before this transaction began.
            place: The location of the database.
        """
        known = self.head.number
        entries = [unmask_answer(entry, key) for entry in self._new(writer)]
        head = verify_chain(self.head, entries, key)
        if known and head.number <= _ALWAYS_VERIFY_ALL:
            every = [unmask_answer(entry, key) for entry in writer.entries(FIRST)]
            if verify_chain(Head(), every, key) != head:
                raise TamperedLedger(
                    f"the entries do not end with entry {head.number}: {_ROLLED_BACK_MESSAGE}"
                )
        for entry in entries:
            self.enter(entry)
        self._refuse_rolled_back(outside, place)
        self.complete = True

    def enter(self, entry: Entry) -> None:
        """Add up the next entry, which was verified or has just been made."""
        self.books.enter(entry)
        self._recent[entry.number] = entry  # before the index, by which other threads find it
        self._pages |= self.index.add(entry)
        self.head = Head(entry.number, entry.seal)
        if entry.number % PAGE == 0:
            sums = json.dumps(self.books.as_dict())
            self.due = Checkpoint(self.head, sums, tuple(self.index.digests), dict(self._pages))

    def trim(self) -> None:
        """Keep the last entries alone; call it when all of them are in the database."""
        if len(self._recent) > PAGE + PAGE // 8:  # not one by one: that would take long
            for number in list(self._recent)[:-PAGE]:
                del self._recent[number]

    def forget_stored(self, checkpoint: Checkpoint) -> None:
        """Keep nothing for a checkpoint that is stored."""
        for page in checkpoint.pages:
            self._pages.pop(page, None)
        if self.due is checkpoint:
            self.due = None

    def knows(self, head: Head) -> bool:
        """Return whether a head is among the entries, or is one that a restore stands for.

        A later entry is known, too, if it was verified that the entries lead to it.
        """
        return (
            head in (self.head, self.ahead, Head())
            or self.index.has_seal(*head)
            or self.books.replaced.get(head.number) == head.seal
        )

    def _new(self, writer: Writer) -> list[Entry]:
        if not self.head.number:
            return writer.begin(FIRST)
        entries = writer.begin(self.head.number)
        if entries and (entries[0].number, entries[0].seal) == (self.head.number, self.head.seal):
            return entries[1:]
        raise TamperedLedger(
            f"entry {self.head.number}, "
            f"which was the last, is gone or changed: {_ROLLED_BACK_MESSAGE}"
        )

    def _refuse_rolled_back(self, outside: Slot, place: str) -> None:
        """Raise TamperedLedger if the head outside the database is not among the entries."""
        number = outside.head.number
        if number == 0 or (number <= self.head.number and self.knows(outside.head)):
            return
        if outside.place != place:
            raise copied_ledger(place, outside)
        if number > self.head.number:
            raise TamperedLedger(
                f"the ledger ends with entry {self.head.number}, but entry {number} has been "
                f"written: {_ROLLED_BACK_MESSAGE}"
            )
        raise TamperedLedger(
            f"entry {number} differs from the one that was written: {_ROLLED_BACK_MESSAGE}"
        )

    def standing(
        self,
        account: Account,
        analyst: str,
        questions: Sequence[str],
        tag: str,
        fetch: Fetch,
        key: bytes,
    ) -> Standing:
        """Return what is recorded of a request.

        Args:
            account: The account of the data set.
            analyst: Who asks.
            questions: The keyed hashes of the questions.
            tag: The tag of a request that may be retried; empty if it has none.
            fetch: Returns stored entries.
            key: The owner's key.

        Raises:
            TamperedLedger: If a recorded answer is gone or is not the one that was written.
        """
        name, distinct = account.name, list(dict.fromkeys(questions))
        keys = [answer_key(name, analyst, question) for question in distinct]
        numbers = self.index.find("answer", keys)
        tagged = self.index.find("request", [request_key(name, tag)])[0] if tag else []
        wanted = {number for each in numbers for number in each}
        if not (wanted or tagged):
            return Standing(account, {})
        entries = self.entries_at(sorted(wanted | set(tagged)), fetch, key)
        labels: dict[str, int] = {}
        for question, found in zip(distinct, numbers, strict=True):
            for entry in (entries[number] for number in found):
                same = (entry.kind, entry.dataset, entry.analyst, entry.question)
                if same == (ANSWER, name, analyst, question) and entry.label is not None:
                    labels[question] = entry.label
        return Standing(
            account, labels, _retried([entries[number] for number in tagged], name, tag)
        )

    def entries_at(self, numbers: Sequence[int], fetch: Fetch, key: bytes) -> dict[int, Entry]:
        """Return the entries with these numbers, verified.

        Guarantees:
            Each is the entry that was written with this number, not another attempt to write it:
            its seal is valid, and begins as the seal that was verified when it was read first.

        Raises:
            TamperedLedger: If an entry is gone or is not the one that was written.
        """
        recent = {number: self._recent.get(number) for number in numbers}
        found = {number: entry for number, entry in recent.items() if entry is not None}
        missing = [number for number in numbers if number not in found]
        if not missing:
            return found
        wanted = sorted({each for number in missing for each in (number - 1, number) if each > 0})
        stored = {entry.number: entry for entry in fetch(wanted)}
        for number in missing:
            entry = unmask_answer(_stored(stored, number), key)
            verify_chain(_before(entry, stored, fetch), [entry], key)
            if not self.index.has_seal(number, entry.seal):
                raise TamperedLedger(
                    f"entry {number} is not the one that was written with this number: another "
                    "attempt to write it took its place; restore the latest copy"
                )
            found[number] = entry
        return found


def _stored(stored: Mapping[int, Entry], number: int) -> Entry:
    if number not in stored:
        raise TamperedLedger(f"entry {number} is gone: {_ROLLED_BACK_MESSAGE}")
    return stored[number]


def _before(entry: Entry, stored: Mapping[int, Entry], fetch: Fetch) -> Head:
    """Return the number and seal of the entry before another one, as it is stored."""
    number = entry.number - 1
    if entry.kind == RESTORE and number not in stored:  # entries before it were lost
        number = int(json.loads(entry.about)["entries"])
        stored = {each.number: each for each in fetch([number])}
    return Head() if number == 0 else Head(number, str(_stored(stored, number).seal))


def _retried(entries: Sequence[Entry], dataset: str, tag: str) -> RetriableRequest | None:
    """Return what the entries of a request say that was charged for it; None if there are none."""
    retried = None
    for entry in entries:
        request = request_of(entry)
        if request is not None and (entry.dataset, request[0]) == (dataset, tag):
            retried = retried or RetriableRequest(request[1])
            retried.costs[entry.question] = Amount(int(entry.loss), int(entry.leak))
    return retried


class Transaction:
    """The current books and the entries added to them; the books include what was added."""

    def __init__(self, reader: Reader, key: bytes, writer: Writer) -> None:
        self.reader, self._key, self._writer = reader, key, writer
        self.added: list[Entry] = []
        self._ended = ""

    @property
    def database_error(self) -> type[Exception]:
        """The class of all errors of the database's driver."""
        return self._writer.error

    @property
    def books(self) -> Accounts:
        return self.reader.books

    @property
    def head(self) -> Head:
        return self.reader.head

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
        self, kind: str, dataset: str, analyst: str = "", amount: Amount = ZERO, **rest: Any
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
        self.reader.enter(entry)
        self._ended = ""

    def keyed_hash(self, *parts: bytes) -> bytes:
        """Return the keyed hash of the parts, as `Ledger.hasher` computes it."""
        return keyed_hash(self._key, *parts)

    def standing(
        self, account: Account, analyst: str, questions: Sequence[str], tag: str = ""
    ) -> Standing:
        """Return what is recorded of a request; the arguments are those of `Reader.standing`."""
        fetch = self._writer.entries_at
        return self.reader.standing(account, analyst, questions, tag, fetch, self._key)

    def release(self, account: Account, question: str) -> dict[str, Any] | None:
        """Return what is recorded of a release; None if there is none."""
        number = account.releases.get(question)
        if number is None:
            return None
        entry = self.reader.entries_at([number], self._writer.entries_at, self._key)[number]
        about: dict[str, Any] = json.loads(entry.about)
        return about


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
        # These are set by `end`, together with the key store:
        self.reader: Reader  # the one that has read what the work saw
        self.ahead: Slot  # the end of the ledger after the transaction
        self.on_disk: bool  # whether all entries up to `ahead` are known to be on disk

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

    def end(self, key_store: KeyStore, reader: Reader, ahead: Slot, on_disk: bool) -> None:
        """Record how the transaction ended."""
        self.key_store, self.reader, self.ahead = key_store, reader, ahead
        self.on_disk, self.ended = on_disk, True
