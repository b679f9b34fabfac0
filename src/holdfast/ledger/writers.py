"""Writers: how one process at a time reads and appends entries, and how forked processes start anew.

Writers talk to the database driver directly, so that a question costs little more than its commit. A
commit lets the next process write before it waits for the disk, so that processes that wait together
share one flush: PostgreSQL's own, or one of SQLite's log, which the first process does for all. A crash
in between takes entries from the end of the ledger only, and no answer has left for them. A forked
child must share neither a connection nor a lock with its parent.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import sqlalchemy as sa

from ..errors import LedgerUnavailable
from .entries import COLUMNS, ENTRIES, Entry
from .safe import fsync_folder

if TYPE_CHECKING:
    from .ledger import Ledger

_LEDGERS: WeakSet[Ledger] = WeakSet()
_FORKING = threading.RLock()  # one thread at a time prepares a fork
_HELD: list[Ledger] = []


def prepare_for_forks(ledger: Ledger) -> None:
    """Close the ledger's connection before every fork of this process; the next use opens it again.

    SQLite's locks do not survive a fork, and a server speaks to one client.
    """
    _LEDGERS.add(ledger)


def _before_fork() -> None:
    _FORKING.acquire()
    for ledger in sorted(_LEDGERS, key=id):
        ledger._threads.acquire()
        ledger._settling.acquire()
        _HELD.append(ledger)
        if not ledger._taken:
            ledger._database.close()


def _after_fork_in_child() -> None:
    for ledger in _HELD:
        ledger._waiting.clear()  # the threads that wait are the parent's
        if ledger._safe is not None:
            ledger._safe.close()  # or the child would share the parent's locks, and keep them if the parent dies
    _after_fork()


def _after_fork() -> None:
    while _HELD:
        ledger = _HELD.pop()
        ledger._settling.release()
        ledger._threads.release()
    _FORKING.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


LOCK = 0x686F6C6466617374  # the key of PostgreSQL's advisory lock: one writer in a database

_SELECT = f"SELECT {', '.join(COLUMNS)} FROM {ENTRIES} WHERE number >= {{}} ORDER BY number"
_INSERT = f"INSERT INTO {ENTRIES} ({', '.join(COLUMNS)}) VALUES ({', '.join(['{}'] * len(COLUMNS))})"

_POSTGRES_BEGIN = f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit = off; SELECT pg_advisory_xact_lock({LOCK}); "
_POSTGRES_FLUSH = "SELECT pg_logical_emit_message(true, 'holdfast', '')"  # its commit waits until the log is on disk up to there


class Writer(ABC):
    """One connection, used by one transaction after the other."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._connect()

    def _connect(self) -> None:
        self._connection = self._engine.raw_connection()
        self._driver: Any = self._connection.dbapi_connection

    def close(self) -> None:
        if self._connection.is_valid:
            self._connection.invalidate()

    @abstractmethod
    def begin(self, first: int) -> list[Entry]:
        """Wait until nobody else writes; return the entries from this number on, in order."""

    @abstractmethod
    def entries(self, first: int) -> list[Entry]:
        """Return the entries from this number on, in order."""

    @abstractmethod
    def modified_externally(self) -> bool:
        """Return whether somebody else is known to have written to the database since our last transaction."""

    @abstractmethod
    def write(self, entries: Sequence[Entry]) -> bool:
        """Commit the entries, so that the next transaction sees them; return whether they are on disk already."""

    @abstractmethod
    def confirm(self) -> bool:
        """End a transaction that wrote nothing; return whether all that it read is known to be on disk."""

    @abstractmethod
    def end(self) -> None:
        """Let the next one write; what was not written is forgotten."""


class SqliteWriter(Writer):
    """One file, one writer."""

    _version: int | None = None

    def begin(self, first: int) -> list[Entry]:
        self._driver.execute("PRAGMA shrink_memory")  # forget cached pages: the file is read, not our memory of it
        self._driver.execute("BEGIN IMMEDIATE")
        return self.entries(first)

    def entries(self, first: int) -> list[Entry]:
        return [Entry._make(row) for row in self._driver.execute(_SELECT.format("?"), (first,)).fetchall()]

    def modified_externally(self) -> bool:
        before, self._version = self._version, self._driver.execute("PRAGMA data_version").fetchone()[0]
        return before != self._version

    def write(self, entries: Sequence[Entry]) -> bool:
        written = self._driver.executemany(_INSERT.format(*"?" * len(COLUMNS)), entries).rowcount
        _refuse_lost(written, len(entries))
        self._driver.execute("COMMIT")
        return False

    def confirm(self) -> bool:
        return False

    def recover(self) -> None:
        """Write and flush all that the log holds into the database itself, after the log could not be flushed."""
        busy, _, _ = self._driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise LedgerUnavailable("SQLite's log could not be flushed, and another process is reading it; nothing was answered; ask again")

    def end(self) -> None:
        if self._driver.in_transaction:
            self._driver.execute("ROLLBACK")


class PostgresWriter(Writer):
    """An advisory lock, and statements in bundles: two round trips per transaction.

    The commit does not wait for the disk and frees the lock; the message committed after it, in the same bundle, waits for both.
    """

    def _connect(self) -> None:
        super()._connect()
        self._module: Any = self._engine.dialect.loaded_dbapi
        self._cursor = self._module.ClientCursor(self._driver)

    def begin(self, first: int) -> list[Entry]:
        bundle = _POSTGRES_BEGIN + _SELECT.format("%s")
        try:
            self._cursor.execute(bundle, (first,))
        except self._module.OperationalError:
            if not self._driver.closed:
                raise
            self.close()  # the server ended an idle connection, or was started anew: nothing had begun, so try once more
            self._connect()
            self._cursor.execute(bundle, (first,))
        _outcomes(self._cursor)
        return [Entry._make(row) for row in self._cursor.fetchall()]

    def entries(self, first: int) -> list[Entry]:
        self._cursor.execute(_SELECT.format("%s"), (first,))
        return [Entry._make(row) for row in self._cursor.fetchall()]

    def modified_externally(self) -> bool:
        return False  # PostgreSQL does not tell

    def write(self, entries: Sequence[Entry]) -> bool:
        inserts = [self._cursor.mogrify(_INSERT.format(*["%s"] * len(COLUMNS)), entry) for entry in entries]
        self._cursor.execute("; ".join([*inserts, "COMMIT", _POSTGRES_FLUSH]))
        outcomes = _outcomes(self._cursor)
        _refuse_lost(outcomes.count("INSERT 0 1"), len(entries))
        if outcomes[-2:] != ["COMMIT", "SELECT 1"]:
            raise LedgerUnavailable(f"PostgreSQL answered COMMIT with {outcomes[-2:]}; nothing was answered")
        return True

    def confirm(self) -> bool:
        """The message is committed on the connection that has read: had the server crashed since, it would be gone."""
        self._cursor.execute(f"COMMIT; {_POSTGRES_FLUSH}")
        return _outcomes(self._cursor) == ["COMMIT", "SELECT 1"]

    def end(self) -> None:
        if not self._driver.closed and self._driver.info.transaction_status.name != "IDLE":
            self._cursor.execute("ROLLBACK")


class SqliteFlusher:
    """Flushes SQLite's write-ahead log, in which every commit is before it is anywhere else.

    The file is opened once and kept open: it is the log of our own open connection. (Closing another
    descriptor of the log releases no lock; SQLite's locks are on the database and on its -shm file.)
    """

    def __init__(self, log: Path) -> None:
        try:
            fsync_folder(log.parent)  # the log's name, too, must survive
            self._file = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise LedgerUnavailable(f"{log}: SQLite's log cannot be flushed to the disk ({error}); nothing was answered") from error

    def flush(self) -> None:
        """Wait until all that is committed is on disk.

        Guarantees:
            A power cut does not take it back, unless an earlier flush of the log failed, in whatever process.
        """
        try:
            os.fdatasync(self._file)
        except OSError as error:
            raise LedgerUnavailable(f"SQLite's log cannot be flushed to the disk ({error}); nothing was answered") from error

    def close(self) -> None:
        os.close(self._file)


def _outcomes(cursor: Any) -> list[str]:
    """Return what the server says of each statement of a bundle; the rows of the last one are then at hand."""
    outcomes = [cursor.statusmessage]
    while cursor.nextset():
        outcomes.append(cursor.statusmessage)
    return outcomes


def _refuse_lost(written: int, expected: int) -> None:
    """Raise if a trigger or a rule of the database swallowed what was written."""
    if written != expected:
        raise LedgerUnavailable(f"the database took {written} of {expected} entries; nothing was answered")
