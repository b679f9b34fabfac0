"""Writers: how one process at a time reads and appends entries.

Writers use the database driver directly, so that a question costs little more than its commit. The
lock is released at the commit, before the flush to disk, so that processes that wait at the same
time share one flush: PostgreSQL's own, or a flush of SQLite's log by the first of them. A crash
before the flush loses only entries at the end of the ledger, for which no answer was returned.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from ..errors import LedgerUnavailable
from .entries import COLUMNS, ENTRIES, Entry
from .key_store import fsync_folder

# The key of PostgreSQL's advisory lock, which allows one writer per database.
ADVISORY_LOCK_KEY = 0x686F6C6466617374

_SELECT = (
    f"SELECT {', '.join(COLUMNS)} FROM {ENTRIES} "
    "WHERE number >= {0} AND number <= {0} ORDER BY number LIMIT {0}"
)
_SELECT_SOME = f"SELECT {', '.join(COLUMNS)} FROM {ENTRIES} WHERE number IN ({{}})"
_LAST = 2**63 - 1  # above any number of an entry
_MOST_AT_ONCE = 500  # numbers in one statement
_INSERT = (
    f"INSERT INTO {ENTRIES} ({', '.join(COLUMNS)}) VALUES ({', '.join(['{}'] * len(COLUMNS))})"
)

_POSTGRES_BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit = off; "
    f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK_KEY}); "
)
# The commit of this message waits until the log is on disk up to the message.
_POSTGRES_FLUSH = "SELECT pg_logical_emit_message(true, 'holdfast', '')"


class Writer(ABC):
    """A connection, used by one transaction after another."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._connect()

    def _connect(self) -> None:
        self._connection = self._engine.raw_connection()
        self._driver: Any = self._connection.dbapi_connection

    @property
    def error(self) -> type[Exception]:
        """The class of all errors of the driver."""
        found: type[Exception] = self._engine.dialect.loaded_dbapi.Error
        return found

    def close(self) -> None:
        if self._connection.is_valid:
            self._connection.invalidate()

    @abstractmethod
    def begin(self, first: int) -> list[Entry]:
        """Wait for other writers, and return the entries from number `first` on, in order."""

    @abstractmethod
    def entries(self, first: int, last: int = _LAST, most: int = _LAST) -> list[Entry]:
        """Return the entries from number `first` to number `last`, at `most` so many, in order."""

    @abstractmethod
    def look_up(self, first: int, last: int, most: int) -> list[Entry]:
        """Return entries as `entries` does, as the first statement on an idle connection."""

    def entries_at(self, numbers: Sequence[int]) -> list[Entry]:
        """Return the entries with these numbers, as far as there are any, in no certain order."""
        found: list[Entry] = []
        for start in range(0, len(numbers), _MOST_AT_ONCE):
            some = numbers[start : start + _MOST_AT_ONCE]
            found += self._select(_SELECT_SOME.format(", ".join(map(str, some))))
        return found

    @abstractmethod
    def _select(self, statement: str) -> list[Entry]:
        """Return the entries that a statement without parameters selects."""

    @abstractmethod
    def write(self, entries: Sequence[Entry]) -> bool:
        """Commit the entries, and return whether they are on disk already."""

    @abstractmethod
    def commit_reads(self) -> bool:
        """End a transaction without writes; return whether all it read is known to be on disk."""

    @abstractmethod
    def end(self) -> None:
        """End the transaction, roll back what was not committed, and let the next one begin."""


class SqliteWriter(Writer):
    """A writer to a SQLite file."""

    def begin(self, first: int) -> list[Entry]:
        # Drop cached pages, so that entries are read from the file.
        self._driver.execute("PRAGMA shrink_memory")
        self._driver.execute("BEGIN IMMEDIATE")
        return self.entries(first)

    def entries(self, first: int, last: int = _LAST, most: int = _LAST) -> list[Entry]:
        rows = self._driver.execute(_SELECT.format("?"), (first, last, most)).fetchall()
        return [Entry._make(row) for row in rows]

    def look_up(self, first: int, last: int, most: int) -> list[Entry]:
        self._driver.execute("PRAGMA shrink_memory")
        return self.entries(first, last, most)

    def _select(self, statement: str) -> list[Entry]:
        return [Entry._make(row) for row in self._driver.execute(statement).fetchall()]

    def write(self, entries: Sequence[Entry]) -> bool:
        written = self._driver.executemany(_INSERT.format(*"?" * len(COLUMNS)), entries).rowcount
        _require_all_stored(written, len(entries))
        self._driver.execute("COMMIT")
        return False

    def commit_reads(self) -> bool:
        return False

    def recover(self) -> None:
        """Write the log's content to the database file and flush it, after a failed flush."""
        busy, _, _ = self._driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise LedgerUnavailable(
                "SQLite's log could not be flushed, and another process is reading it; "
                "nothing was answered; ask again"
            )

    def end(self) -> None:
        if self._driver.in_transaction:
            self._driver.execute("ROLLBACK")


class PostgresWriter(Writer):
    """A writer to PostgreSQL, with an advisory lock and two round trips per transaction.

    Statements are sent in bundles. The commit frees the lock without waiting for the disk; a
    message committed after it, in the same bundle, waits until both are on disk.
    """

    def _connect(self) -> None:
        super()._connect()
        self._module: Any = self._engine.dialect.loaded_dbapi
        self._cursor = self._module.ClientCursor(self._driver)

    def begin(self, first: int) -> list[Entry]:
        self._execute_first(_POSTGRES_BEGIN + _SELECT.format("%s"), (first, _LAST, _LAST))
        _status_messages(self._cursor)
        return [Entry._make(row) for row in self._cursor.fetchall()]

    def _execute_first(self, statements: str, values: tuple[int, ...]) -> None:
        """Execute the first statements of a transaction, on a new connection if the old is gone."""
        try:
            self._cursor.execute(statements, values)
        except self._module.OperationalError:
            if not self._driver.closed:
                raise
            # The server closed an idle connection or restarted. Nothing had begun: try once more.
            self.close()
            self._connect()
            self._cursor.execute(statements, values)

    def entries(self, first: int, last: int = _LAST, most: int = _LAST) -> list[Entry]:
        self._cursor.execute(_SELECT.format("%s"), (first, last, most))
        return [Entry._make(row) for row in self._cursor.fetchall()]

    def look_up(self, first: int, last: int, most: int) -> list[Entry]:
        self._execute_first(_SELECT.format("%s"), (first, last, most))
        return [Entry._make(row) for row in self._cursor.fetchall()]

    def _select(self, statement: str) -> list[Entry]:
        self._cursor.execute(statement)
        return [Entry._make(row) for row in self._cursor.fetchall()]

    def write(self, entries: Sequence[Entry]) -> bool:
        inserts = [
            self._cursor.mogrify(_INSERT.format(*["%s"] * len(COLUMNS)), entry) for entry in entries
        ]
        self._cursor.execute("; ".join([*inserts, "COMMIT", _POSTGRES_FLUSH]))
        outcomes = _status_messages(self._cursor)
        _require_all_stored(outcomes.count("INSERT 0 1"), len(entries))
        if outcomes[-2:] != ["COMMIT", "SELECT 1"]:
            raise LedgerUnavailable(
                f"PostgreSQL answered COMMIT with {outcomes[-2:]}, "
                "expected ['COMMIT', 'SELECT 1']; nothing was answered"
            )
        return True

    def commit_reads(self) -> bool:
        """End a transaction without writes; return whether all it read is known to be on disk.

        The message is committed on the connection that did the reading: if the server had crashed
        since, that connection would be gone.
        """
        self._cursor.execute(f"COMMIT; {_POSTGRES_FLUSH}")
        return _status_messages(self._cursor) == ["COMMIT", "SELECT 1"]

    def end(self) -> None:
        if not self._driver.closed and self._driver.info.transaction_status.name != "IDLE":
            self._cursor.execute("ROLLBACK")


class SqliteFlusher:
    """Flushes SQLite's write-ahead log, where every commit is written first.

    The file is the log of our own open connection; it is opened once and kept open. (Closing
    another descriptor of the log releases no lock: SQLite's locks are on the database file and on
    its -shm file.)
    """

    def __init__(self, log: Path) -> None:
        try:
            fsync_folder(log.parent)  # the log's name must survive a power cut, too
            self._file = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise LedgerUnavailable(
                f"{log}: SQLite's log cannot be flushed to the disk ({error}); nothing was answered"
            ) from error

    def flush(self) -> None:
        """Wait until all commits so far are on disk.

        Guarantees:
            A power cut does not undo these commits, unless an earlier flush of the log failed, in
            this process or another.
        """
        try:
            os.fdatasync(self._file)
        except OSError as error:
            raise LedgerUnavailable(
                f"SQLite's log cannot be flushed to the disk ({error}); nothing was answered"
            ) from error

    def close(self) -> None:
        os.close(self._file)


def _status_messages(cursor: Any) -> list[str]:
    """Return the server's status message for each statement of a bundle.

    Afterwards, the cursor holds the rows of the last statement.
    """
    outcomes = [cursor.statusmessage]
    while cursor.nextset():
        outcomes.append(cursor.statusmessage)
    return outcomes


def _require_all_stored(written: int, expected: int) -> None:
    """Raise LedgerUnavailable if a trigger or a rule of the database dropped entries."""
    if written != expected:
        raise LedgerUnavailable(
            f"the database stored {written} of {expected} entries; nothing was answered; remove "
            "triggers and rules from its tables"
        )
