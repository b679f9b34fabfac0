"""The database of a ledger: SQLite in WAL mode, or PostgreSQL; every commit is on disk before it counts."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError

from ..errors import InvalidInput, LedgerUnavailable, TamperedLedger
from .entries import Entry
from .schema import ENTRIES, IDENTITY, VERSION, migrate, version

EXPECTED = 'expected an address like "sqlite:///ledger.db" or "postgresql://user@host/database"'
_WAIT_SECONDS = 60.0  # for another process's turn
_BOOTSTRAP = 0x686F6C64  # of PostgreSQL's advisory lock while tables are made


class Database:
    """Entries in, entries out; one writer at a time."""

    def __init__(self, address: str) -> None:
        self._url = _read(address)
        self._file = Path(self._url.database).absolute() if self._url.drivername.startswith("sqlite") and self._url.database else None
        if self._file is not None and not self._file.parent.is_dir():
            raise InvalidInput(f"{address}: the folder {self._file.parent} does not exist; create it first")
        self._engine = self._connect()
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
        with _reporting(self.place), self._engine.connect() as connection:
            return version(connection) is not None

    def identity(self, create: Any) -> str:
        """Which ledger this is. An empty database gets one from `create(new identity)`, which is run before it is written."""
        with self._exclusive(bootstrap=True) as connection:
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
        """Exclusive: nobody else writes until it ends. Committed, on disk, where it ends well."""
        with self._exclusive() as connection:
            yield Turn(connection)

    @contextmanager
    def _exclusive(self, bootstrap: bool = False) -> Iterator[sa.Connection]:
        if self._file is not None and self._seen is not None and self._seen != _inodes(self._file):
            self._engine.dispose()  # the file was exchanged under us: look at the new one
            self._seen = None
        with _reporting(self.place), self._engine.begin() as connection:
            if self._file is None and bootstrap:
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _BOOTSTRAP})
            elif self._file is None:
                connection.execute(_LOCK)
            yield connection
        if self._file is not None and self._seen is None:
            self._seen = _inodes(self._file)

    def close(self) -> None:
        self._engine.dispose()

    def _connect(self) -> sa.Engine:
        if self._file is None:
            engine = sa.create_engine(self._url, isolation_level="READ COMMITTED", pool_pre_ping=True)
            sa.event.listen(engine, "connect", _prepare_postgres)
            return engine
        engine = sa.create_engine(self._url, connect_args={"timeout": _WAIT_SECONDS, "isolation_level": None})
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine


class Turn:
    """What can be done while nobody else writes."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def entries(self, first: int) -> list[Entry]:
        """Those from this number on, in order."""
        return [Entry(*row) for row in self._connection.execute(_FROM, {"first": first})]

    def write(self, entries: Iterable[Entry]) -> None:
        self._connection.execute(_INSERT, [vars(entry) for entry in entries])


_FROM = sa.select(ENTRIES).where(ENTRIES.c.number >= sa.bindparam("first")).order_by(ENTRIES.c.number)
_INSERT = ENTRIES.insert()
_LOCK = sa.select(IDENTITY.c.identity).with_for_update()


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


def _begin_sqlite(connection: sa.Connection) -> None:
    connection.exec_driver_sql("PRAGMA shrink_memory")  # forget cached pages: the file is read, not our memory of it
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _prepare_postgres(connection: Any, _: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = on")
        cursor.execute(f"SET lock_timeout = '{int(_WAIT_SECONDS)}s'")
        flushed = cursor.execute("SHOW fsync").fetchone()[0]
    connection.commit()
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


@contextmanager
def _reporting(place: str) -> Iterator[None]:
    """Errors of the database as ours."""
    try:
        yield
    except IntegrityError as error:
        raise TamperedLedger(f"{place}: the next entry's number is taken already ({error.orig}); nothing was answered") from error
    except SQLAlchemyError as error:
        reason = getattr(error, "orig", None) or error
        raise LedgerUnavailable(f"{place}: {str(reason).strip()}; nothing was answered") from error
