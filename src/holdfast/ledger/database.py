"""The database of a ledger: SQLite in WAL mode, or PostgreSQL; every commit is on disk before it counts."""

from __future__ import annotations

import os
import secrets
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from ..errors import HoldfastError, InvalidInput, LedgerUnavailable, TamperedLedger
from .entries import COLUMNS, Entry
from .schema import ENTRIES, IDENTITY, VERSION, migrate, version

EXPECTED = 'expected an address like "sqlite:///ledger.db" or "postgresql://user@host/database"'
_WAIT_SECONDS = 60.0  # for another process's turn
_LOCK = 0x686F6C6466617374  # the key of PostgreSQL's advisory lock: one writer in a database


class Database:
    """Entries in, entries out; one writer at a time."""

    def __init__(self, address: str) -> None:
        self._url = _read(address)
        self._file = Path(self._url.database).absolute() if self._url.drivername.startswith("sqlite") and self._url.database else None
        if self._file is not None and not self._file.parent.is_dir():
            raise InvalidInput(f"{address}: the folder {self._file.parent} does not exist; create it first")
        self._engine = self._connect()
        self._open: list[Turn] = []  # the one that is open, if any
        weakref.finalize(self, _let_go, self._engine, self._open)
        self._seen: tuple[Any, ...] | None = None

    @property
    def place(self) -> str:
        """Where it is, without user and password."""
        return str(self._file) if self._file is not None else f"{self._url.host or ''}:{self._url.port or ''}/{self._url.database}"

    @property
    def exists(self) -> bool:
        """Whether there is a ledger."""
        if self._file is not None and not self._file.exists():
            return False
        with self._reporting(), self._engine.connect() as connection:
            return version(connection) is not None

    def identity(self, create: Callable[[str], None]) -> str:
        """Which ledger this is. An empty database gets one from `create(new identity)`, which is run before it is written."""
        with self._reporting(), self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE" if self._file is not None else "BEGIN")
            try:
                if self._file is None:
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
                identity = self._identity(connection, create)
                connection.exec_driver_sql("COMMIT")
            except BaseException:
                connection.exec_driver_sql("ROLLBACK")
                raise
            return identity

    def _identity(self, connection: sa.Connection, create: Callable[[str], None]) -> str:
        found = version(connection)
        if found is not None and found > VERSION:
            raise LedgerUnavailable(f"{self.place}: tables of version {found}, from a newer holdfast; this one knows {VERSION}")
        if found != VERSION:
            migrate(connection)
        known = connection.execute(sa.select(IDENTITY.c.identity)).scalars().all()
        if len(known) > 1:
            raise TamperedLedger(f"{self.place}: holds {len(known)} identities; expected one")
        if known:
            return str(known[0])
        if connection.execute(sa.select(ENTRIES.c.number).limit(1)).first() is not None:
            raise TamperedLedger(f"{self.place}: holds entries of a ledger whose identity is gone")
        identity = secrets.token_hex(8)
        create(identity)
        connection.execute(IDENTITY.insert(), {"identity": identity})
        return identity

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """For one writer at a time. What it wrote is on disk where this ends well, and gone where it does not."""
        try:
            if not self._open:
                self._open.append(SqliteTurn(self._engine) if self._file is not None else PostgresTurn(self._engine))
            yield self._open[0]
            self._open[0].end()
        except (SQLAlchemyError, self._driver.Error) as error:
            self.close()  # whatever state the connection is in: the next turn begins with a new one
            raise self._ours(error) from error
        except BaseException:
            for turn in self._open:
                turn.end()
            raise
        if self._file is not None and self._seen is None:
            self._seen = _inodes(self._file)

    def exchanged(self) -> bool:
        """Whether another file took the place of the one that is open."""
        return self._file is not None and self._seen is not None and self._seen != _inodes(self._file)

    @property
    def _driver(self) -> Any:
        return self._engine.dialect.loaded_dbapi

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, self._driver.Error) as error:
            raise self._ours(error) from error

    def _ours(self, error: Exception) -> HoldfastError:
        """An error of the database as one of ours."""
        reason = getattr(error, "orig", None) or error
        if isinstance(reason, self._driver.IntegrityError):
            return TamperedLedger(f"{self.place}: the next entry's number is taken ({reason}); nothing was answered")
        return LedgerUnavailable(f"{self.place}: {str(reason).strip()}; nothing was answered")

    def close(self) -> None:
        _let_go(self._engine, self._open)
        self._seen = None

    def _connect(self) -> sa.Engine:
        """Transactions are begun and ended in so many words, below; the driver begins none of its own."""
        wait = {} if self._file is None else {"timeout": _WAIT_SECONDS}
        engine = sa.create_engine(self._url, isolation_level="AUTOCOMMIT", connect_args=wait)
        sa.event.listen(engine, "connect", _prepare_postgres if self._file is None else _prepare_sqlite)
        return engine


class Turn(ABC):
    """What one writer does, over and over. Straight to the driver: an ask should cost little more than its commit."""

    def __init__(self, engine: sa.Engine) -> None:
        self._connection = engine.raw_connection()
        self._driver: Any = self._connection.dbapi_connection

    def close(self) -> None:
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
    def write(self, entries: Iterable[Entry]) -> None:
        """Put the entries on disk, and end the turn."""

    @abstractmethod
    def end(self) -> None:
        """Let the next one write; what was not written is forgotten."""


class SqliteTurn(Turn):
    """One file, one writer."""

    _version: int | None = None

    def begin(self, first: int) -> list[Entry]:
        self._driver.execute("PRAGMA shrink_memory")  # forget cached pages: the file is read, not our memory of it
        self._driver.execute("BEGIN IMMEDIATE")
        return self.entries(first)

    def entries(self, first: int) -> list[Entry]:
        return [Entry(*row) for row in self._driver.execute(_SELECT.format("?"), (first,)).fetchall()]

    def disturbed(self) -> bool:
        before, self._version = self._version, self._driver.execute("PRAGMA data_version").fetchone()[0]
        return before != self._version

    def write(self, entries: Iterable[Entry]) -> None:
        self._driver.executemany(_INSERT.format(*"?" * len(COLUMNS)), [entry.row for entry in entries])
        self._driver.execute("COMMIT")

    def end(self) -> None:
        if self._driver.in_transaction:
            self._driver.execute("ROLLBACK")


class PostgresTurn(Turn):
    """An advisory lock, and statements in bundles: two round trips for a turn."""

    def __init__(self, engine: sa.Engine) -> None:
        super().__init__(engine)
        module: Any = engine.dialect.loaded_dbapi
        self._cursor = module.ClientCursor(self._driver)

    def begin(self, first: int) -> list[Entry]:
        lock = f"BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock({_LOCK}); "
        self._cursor.execute(lock + _SELECT.format("%s"), (first,))
        return self._last()

    def entries(self, first: int) -> list[Entry]:
        self._cursor.execute(_SELECT.format("%s"), (first,))
        return self._last()

    def disturbed(self) -> bool:
        return False  # PostgreSQL does not tell

    def write(self, entries: Iterable[Entry]) -> None:
        inserts = [self._cursor.mogrify(_INSERT.format(*["%s"] * len(COLUMNS)), entry.row) for entry in entries]
        self._cursor.execute("; ".join([*inserts, "COMMIT"]))
        while self._cursor.nextset():
            pass
        if self._cursor.statusmessage != "COMMIT":
            raise LedgerUnavailable(f"PostgreSQL answered COMMIT with {self._cursor.statusmessage}; nothing was answered")

    def end(self) -> None:
        if self._driver.info.transaction_status.name != "IDLE":
            self._cursor.execute("ROLLBACK")

    def _last(self) -> list[Entry]:
        """The rows of the bundle's last statement."""
        while self._cursor.nextset():
            pass
        return [Entry(*row) for row in self._cursor.fetchall()]


_SELECT = f"SELECT {', '.join(COLUMNS)} FROM {ENTRIES} WHERE number >= {{}} ORDER BY number"
_INSERT = f"INSERT INTO {ENTRIES} ({', '.join(COLUMNS)}) VALUES ({', '.join(['{}'] * len(COLUMNS))})"


def _let_go(engine: sa.Engine, turns: list[Turn]) -> None:
    while turns:
        turns.pop().close()
    engine.dispose()


def _read(address: str) -> sa.URL:
    try:
        url = sa.make_url(address)
    except ArgumentError:
        raise InvalidInput(f"ledger={address!r}: {EXPECTED}") from None
    kind = url.get_backend_name()
    if kind == "sqlite":
        if url.database in (None, "", ":memory:") or "mode=memory" in str(url.query):
            raise InvalidInput(f"{address}: a ledger in memory forgets what was spent; {EXPECTED}")
        return url
    if kind in ("postgresql", "postgres"):
        try:
            import psycopg  # noqa: F401
        except ImportError:
            raise InvalidInput(f"a ledger in PostgreSQL needs the extra: pip install 'holdfast[postgres]' ({kind})") from None
        return url.set(drivername="postgresql+psycopg")
    raise InvalidInput(f"ledger: a database of kind {kind!r} is not supported; {EXPECTED}")


def _prepare_sqlite(connection: Any, _: Any) -> None:
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    connection.execute("PRAGMA synchronous=FULL")
    if mode != "wal":
        raise LedgerUnavailable(f"SQLite cannot use its write-ahead log here (journal_mode={mode}); put the ledger on a local disk")


def _prepare_postgres(connection: Any, _: Any) -> None:
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = on")
        cursor.execute(f"SET lock_timeout = '{int(_WAIT_SECONDS)}s'")
        flushed = cursor.execute("SHOW fsync").fetchone()[0]
    if flushed != "on":
        raise LedgerUnavailable("the PostgreSQL server runs with fsync = off and may forget what was spent; turn it on")


def _inodes(file: Path) -> tuple[Any, ...]:
    """Which files the database consists of at this moment."""
    found = []
    for ending in ("", "-wal", "-shm"):
        try:
            about = os.stat(f"{file}{ending}")
            found.append((about.st_dev, about.st_ino))
        except FileNotFoundError:
            found.append((0, 0))
    return tuple(found)
