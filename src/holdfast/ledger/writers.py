"""Writers: how one process at a time reads and appends entries. Straight to the driver: an ask should cost little more than its commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from ..errors import LedgerUnavailable
from .entries import COLUMNS, Entry
from .schema import ENTRIES

LOCK = 0x686F6C6466617374  # the key of PostgreSQL's advisory lock: one writer in a database

_SELECT = f"SELECT {', '.join(COLUMNS)} FROM {ENTRIES} WHERE number >= {{}} ORDER BY number"
_INSERT = f"INSERT INTO {ENTRIES} ({', '.join(COLUMNS)}) VALUES ({', '.join(['{}'] * len(COLUMNS))})"


class Writer(ABC):
    """One connection, used turn by turn."""

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
        """Wait until nobody else writes; the entries from this number on, in order."""

    @abstractmethod
    def entries(self, first: int) -> list[Entry]:
        """Those from this number on, in order."""

    @abstractmethod
    def disturbed(self) -> bool:
        """Whether somebody else is known to have written to the database since our last turn."""

    @abstractmethod
    def write(self, entries: Sequence[Entry]) -> None:
        """Put the entries on disk, and end the turn."""

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

    def disturbed(self) -> bool:
        before, self._version = self._version, self._driver.execute("PRAGMA data_version").fetchone()[0]
        return before != self._version

    def write(self, entries: Sequence[Entry]) -> None:
        written = self._driver.executemany(_INSERT.format(*"?" * len(COLUMNS)), entries).rowcount
        _refuse_lost(written, len(entries))
        self._driver.execute("COMMIT")

    def end(self) -> None:
        if self._driver.in_transaction:
            self._driver.execute("ROLLBACK")


class PostgresWriter(Writer):
    """An advisory lock, and statements in bundles: two round trips for a turn."""

    def _connect(self) -> None:
        super()._connect()
        self._module: Any = self._engine.dialect.loaded_dbapi
        self._cursor = self._module.ClientCursor(self._driver)

    def begin(self, first: int) -> list[Entry]:
        bundle = f"BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock({LOCK}); " + _SELECT.format("%s")
        try:
            self._cursor.execute(bundle, (first,))
        except self._module.OperationalError:
            if not self._driver.closed:
                raise
            self.close()  # the server ended an idle connection, or was started anew: nothing had begun, so try once more
            self._connect()
            self._cursor.execute(bundle, (first,))
        self._outcomes()
        return [Entry._make(row) for row in self._cursor.fetchall()]

    def entries(self, first: int) -> list[Entry]:
        self._cursor.execute(_SELECT.format("%s"), (first,))
        return [Entry._make(row) for row in self._cursor.fetchall()]

    def disturbed(self) -> bool:
        return False  # PostgreSQL does not tell

    def write(self, entries: Sequence[Entry]) -> None:
        inserts = [self._cursor.mogrify(_INSERT.format(*["%s"] * len(COLUMNS)), entry) for entry in entries]
        self._cursor.execute("; ".join([*inserts, "COMMIT"]))
        outcomes = self._outcomes()
        _refuse_lost(outcomes.count("INSERT 0 1"), len(entries))
        if outcomes[-1] != "COMMIT":
            raise LedgerUnavailable(f"PostgreSQL answered COMMIT with {outcomes[-1]}; nothing was answered")

    def end(self) -> None:
        if not self._driver.closed and self._driver.info.transaction_status.name != "IDLE":
            self._cursor.execute("ROLLBACK")

    def _outcomes(self) -> list[str]:
        """What the server says of each statement of a bundle; the rows of the last one are then at hand."""
        outcomes = [self._cursor.statusmessage]
        while self._cursor.nextset():
            outcomes.append(self._cursor.statusmessage)
        return outcomes


def _refuse_lost(written: int, expected: int) -> None:
    """A trigger or a rule of the database may swallow what is written."""
    if written != expected:
        raise LedgerUnavailable(f"the database took {written} of {expected} entries; nothing was answered")
