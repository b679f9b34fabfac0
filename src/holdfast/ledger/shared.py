"""SharedLedger: exclusive access to one ledger from many threads and processes; verification.

A page is a short read outside the lock of the ledger: the chain of seals needs no snapshot, and a
long reader would keep SQLite's log from being truncated.

Threads that wait at the same time share one database transaction. A forked child must share neither
a connection nor a lock with its parent.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

from ..errors import CopiedLedger, InvalidInput, LedgerUnavailable, TamperedLedger
from .checkpoints import Checkpoint, EntryIndex, unmask_checkpoint
from .database import Database
from .entries import FIRST, Entry, Head, mask_answer, unmask_answer, verify_chain
from .key_store import KeyStore, Slot, default_home, find_head_file, keyed_hash, known_places
from .transaction import Reader, Request, Transaction, TransactionAborted

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


T = TypeVar("T")
_LOG = logging.getLogger(__name__)


class SharedLedger:
    """The part of a ledger that opens, locks, verifies and writes it; `Ledger` adds budgets."""

    def __init__(self, address: str, *, home: str | PathLike[str] | None = None) -> None:
        if not isinstance(address, str):
            raise InvalidInput(
                f"ledger={address!r}: expected an address, for example 'sqlite:///ledger.db'"
            )
        self.home = (default_home() if home is None else Path(home)).absolute()
        self._database = Database(address)
        self.address = self._database.address
        self._lock, self._in_transaction = threading.RLock(), False
        self._local = threading.local()  # whether this thread is using the ledger
        self._waiting: deque[Request] = deque()
        self._settling = threading.Lock()
        self._settled = Head()  # all entries up to this one are on disk and covered by the head
        self._key_store: KeyStore | None = None
        self._reader, self._verification = Reader(), RunningVerification()
        _LEDGERS.add(self)

    def transact(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` while no other process or thread writes, after verifying the entries.

        Threads that wait at the same time share one database transaction; an error in the work of
        one does not affect the others.

        Args:
            work: Reads the books and adds entries. It may run again if another thread's work
                failed.

        Returns:
            The result of `work`, once all entries that it saw or added are on disk and covered by
            the head outside the database.

        Raises:
            TamperedLedger: If an entry is not what was written.
            LedgerUnavailable: If the database or the home folder cannot be read or written. The
                added entries may or may not be stored; none of them has been shown to anybody.
        """
        result = self.transact_together([work])[0]
        if isinstance(result, Exception):
            raise result
        return result

    def transact_together(self, works: Sequence[Callable[[Transaction], T]]) -> list[T | Exception]:
        """Run several pieces of work in one transaction, each as `transact` would run it.

        Args:
            works: The pieces of work, in order. An error in one does not affect the others.

        Returns:
            For each piece its result, or the error that it raised.

        Raises:
            TamperedLedger: As for `transact`; so do all pieces of work.
            LedgerUnavailable: As for `transact`; so do all pieces of work.
        """
        requests = [Request(self._guarded(work)) for work in works]
        with self._refuse_reentry():
            self._waiting.extend(requests)
            try:
                with self._lock:
                    while not all(request.ended for request in requests):
                        self._run_waiting(requests)
            finally:
                for request in requests:
                    if not request.ended:  # interrupted: nobody is waiting for it any more
                        with suppress(ValueError):
                            self._waiting.remove(request)
            for request in requests:
                self._settle(request)  # a refusal also reveals what was seen
            self._after_settling()
        return [request.result if request.error is None else request.error for request in requests]

    @contextmanager
    def guarded(self, check: Callable[[Transaction], None]) -> Iterator[None]:
        """Run a check first in every transaction that this thread makes meanwhile.

        Args:
            check: Raises an error if the transaction must not happen; then nothing is written.
        """
        self._local.check = check
        try:
            yield
        finally:
            self._local.check = None

    def _guarded(self, work: Callable[[Transaction], T]) -> Callable[[Transaction], T]:
        check = getattr(self._local, "check", None)  # of the thread that asks, not of the one
        if check is None:  # that runs the transaction for all
            return work

        def checked(transaction: Transaction) -> T:
            check(transaction)
            return work(transaction)

        return checked

    def close(self) -> None:
        """Close the database; the next use opens it again."""
        with self._refuse_reentry(), self._lock:
            self._database.close()
            self._key_store, self._settled = None, Head()
            self._reader, self._verification = Reader(), RunningVerification()

    def hasher(self) -> Callable[..., bytes]:
        """Return a function that computes the keyed hash of its arguments.

        Without the owner's key, nobody can tell from a hash what was asked.
        """
        with self._lock:
            return partial(keyed_hash, self._open(create=False).key)

    def refuse_own_file(self, path: Path) -> None:
        """Raise InvalidInput if a path is that of the database itself."""
        if self._database.is_file(path):
            raise InvalidInput(f"{path}: this is the ledger itself; name another file")

    def key_store(self) -> KeyStore:
        """Return the key and the head of this ledger, which exists."""
        with self._lock:
            return self._open(create=False)

    def _run_waiting(self, mine: Sequence[Request]) -> None:
        """Run all waiting requests in one transaction.

        If it fails, the unfinished requests other than `mine` return to the queue.
        """
        together = [request for request in mine if not request.ended]
        own = {id(request) for request in mine}
        try:
            while self._waiting:
                # If this thread is interrupted here, the request's own thread runs it.
                request = self._waiting.popleft()
                if id(request) not in own:
                    together.append(request)
            self._run(together)
        except TransactionAborted:
            pass  # the failed request has ended; the others run again
        finally:
            self._waiting.extendleft(
                reversed(
                    [
                        request
                        for request in together
                        if id(request) not in own and not request.ended
                    ]
                )
            )

    def _run(self, together: Sequence[Request]) -> None:
        self._in_transaction, reader = True, self._reader
        try:
            key_store = self._open(create=False)
            self._verification.refuse_if_damaged()
            if key_store.flush_failed:
                self._database.recover()
                key_store.forget_failed_flush()
            outside = key_store.head()  # read first: the entries read below must reach it
            if not reader.head.number:
                self._begin_reading(reader, key_store.key, outside.head)
            with self._database.transaction(key_store.queue) as writer:
                reader.catch_up(writer, key_store.key, outside, self._database.location)
                transaction = Transaction(reader, key_store.key, writer)
                for request in together:
                    request.run(transaction)
                transaction.close()
                key_store.record_datasets(transaction.books.names, self._database.location)
                on_disk = transaction.head.number <= outside.head.number
                if not on_disk:
                    on_disk = (
                        writer.write(
                            [mask_answer(entry, key_store.key) for entry in transaction.added]
                        )
                        if transaction.added
                        else writer.commit_reads()
                    )
                ahead = Slot(
                    transaction.head, self._database.location, dict(transaction.books.totals())
                )
                reader.trim()
                if not on_disk:
                    key_store.queue.write(0, ahead)
            for request in together:
                request.end(key_store, reader, ahead, on_disk)
        except BaseException:
            self._reader = Reader()  # its state is in doubt: read everything again
            raise
        finally:
            self._in_transaction = False

    def _begin_reading(self, reader: Reader, key: bytes, outside: Head) -> None:
        """Begin with the latest checkpoint, and read in pages, outside a transaction.

        Only entries that the head covers are read: others may still be lost in a crash.
        """
        if (latest := self._database.latest_checkpoint()) is not None:
            number, nonce, content, seal = latest
            checkpoint = unmask_checkpoint(key, nonce, content, seal)
            index = None
            if checkpoint is not None and checkpoint.head.number == number:
                pages = self._database.pages(len(checkpoint.digests))
                index = EntryIndex.of_pages(checkpoint.digests, pages)
            if checkpoint is not None and index is not None:
                reader.begin_with(checkpoint, index)
            else:
                reader.rebuild = True
                _LOG.warning("%r: a checkpoint is damaged; all entries are read", self)
        while reader.head.number < outside.number:
            first = reader.head.number + 1 if reader.head.number else FIRST
            stored = self._database.look_up(first, outside.number)
            if not stored:
                break  # the transaction finds out what is missing
            reader.read_page(stored, key)

    def _after_settling(self) -> None:
        """Store a checkpoint that is due, and verify some entries again, outside all locks."""
        reader, key_store = self._reader, self._key_store
        if key_store is None:
            return
        if not reader.complete or not reader.knows(self._settled):
            return  # another thread is reading the ledger anew
        due = reader.due
        if due is not None and due.head.number <= self._settled.number:
            self._store(reader, due, key_store.key)
        self._verification.step(self._database, reader, key_store.key, self._settled.number)

    def _store(self, reader: Reader, checkpoint: Checkpoint, key: bytes) -> None:
        """Store a checkpoint; if that fails, the next one is tried: nothing depends on it."""
        try:
            if reader.rebuild or not self._database.has_checkpoint(checkpoint.head.number):
                self._database.store_checkpoint(
                    checkpoint.head.number, checkpoint.masked(key), checkpoint.pages
                )
            reader.forget_stored(checkpoint)
            reader.rebuild = False
        except LedgerUnavailable as error:
            _LOG.warning("a checkpoint could not be stored: %s", error)

    def _settle(self, request: Request) -> None:
        """Wait until what the request saw or added is on disk and covered by the head."""
        if request.key_store is None or self._is_settled(request):
            return
        with self._settling:
            if not self._is_settled(request):
                flush = None if request.on_disk else self._database.flush
                key, ahead = request.key_store.key, request.ahead
                is_entry = partial(self._is_entry, request.reader, ahead.head, key)
                self._settled = request.key_store.advance_head(ahead, flush, is_entry)

    def _is_settled(self, request: Request) -> bool:
        """Return whether the last head that was settled is known to follow the request's entries.

        A number alone does not tell: the entries of another copy may have been put into this one.
        """
        settled = self._settled
        return settled.number >= request.ahead.head.number and request.reader.knows(settled)

    def _is_entry(self, reader: Reader, known: Head, key: bytes, head: Head) -> bool:
        """Return whether `head` is an entry of this database, as `known` is.

        `reader` is the one that has read or added `known`: another may have read other entries.

        Guarantees:
            If so, the entries between the two lead from one to the other.
        """
        if head.number <= known.number or reader.knows(head):
            return reader.knows(head)
        stored = self._database.look_up(known.number + 1, head.number, head.number - known.number)
        between = [unmask_answer(entry, key) for entry in stored]
        try:
            if verify_chain(known, between, key) != head:
                return False
        except TamperedLedger:
            return False
        reader.ahead = head
        return True

    @contextmanager
    def _refuse_reentry(self) -> Iterator[None]:
        """Raise InvalidInput if this thread is already using the ledger.

        Such a thread, for example in a signal handler, would wait for itself.
        """
        if getattr(self._local, "inside", False):
            raise InvalidInput(
                "this thread is in a transaction of the ledger already; "
                "end it before starting another"
            )
        self._local.inside = True
        try:
            yield
        finally:
            self._local.inside = False

    def _known_identity(self) -> str | None:
        """Return the ledger's identity, or None if there is no ledger yet.

        Raises:
            TamperedLedger: If there was a ledger here and it is gone.
        """
        with self._lock:
            if self._key_store is not None or self._database.exists:
                return self._open(create=False).identity
            self._refuse_missing_ledger()
            return None

    def _open(self, create: bool) -> KeyStore:
        self._database.refuse_replaced_files()
        if self._key_store is None:
            key_store = KeyStore(self.home, self._identity(create))
            outside = key_store.head()
            if self._database.is_copy_of(outside.place, key_store.identity):
                raise CopiedLedger(
                    f"{self._database.location}: this is a copy of the ledger at {outside.place}, "
                    "which is still there; nothing was answered. Use that one, or move it away if "
                    "this copy is to take its place: two copies would spend the budget twice"
                )
            self._key_store = key_store
            self._database.on_failed_flush = key_store.note_failed_flush
        return self._key_store

    def _refuse_missing_ledger(self) -> None:
        head_file = find_head_file(self.home, self._database.location)
        if head_file is not None:
            raise TamperedLedger(
                f"{self._database.location}: there was a ledger with entries here, and it is "
                f"gone ({head_file.name}); restore it from a copy"
            )

    def _identity(self, create: bool) -> str:
        place = self._database.location
        head_file = find_head_file(self.home, place)

        def make(identity: str) -> None:
            self._refuse_missing_ledger()
            if not create:
                raise InvalidInput(
                    f"{place}: no ledger here{known_places(self.home)}; "
                    "the owner creates it with the first budget: holdfast budget create"
                )
            KeyStore.create(self.home, identity, place)

        if not create and not self._database.exists:
            make("")
        identity = self._database.identity(make)
        if head_file is not None and head_file.stem != identity:
            raise TamperedLedger(
                f"{place}: another ledger took the place of the one that was here "
                f"({head_file.name}); restore the original"
            )
        return identity


_LEDGERS: WeakSet[SharedLedger] = WeakSet()
_FORKING = threading.RLock()  # one thread at a time prepares a fork
_HELD: list[SharedLedger] = []


def _before_fork() -> None:
    """Close the connection of every ledger before this process forks; the next use opens it again.

    SQLite's locks do not survive a fork, and a server connection serves a single process.
    """
    _FORKING.acquire()
    for ledger in sorted(_LEDGERS, key=id):
        ledger._lock.acquire()
        ledger._settling.acquire()
        ledger._database.beside.acquire()  # first: a look-up would open a connection again
        _HELD.append(ledger)
        if not ledger._in_transaction:
            ledger._database.close()


def _after_fork_in_child() -> None:
    for ledger in _HELD:
        ledger._waiting.clear()  # the waiting threads exist only in the parent
        ledger._verification = RunningVerification()  # so does one that is verifying
        if ledger._key_store is not None:
            # Otherwise the child would share the parent's locks, and keep them if the parent dies.
            ledger._key_store.close()
    _after_fork()


def _after_fork() -> None:
    while _HELD:
        ledger = _HELD.pop()
        ledger._database.beside.release()
        ledger._settling.release()
        ledger._lock.release()
    _FORKING.release()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
)
