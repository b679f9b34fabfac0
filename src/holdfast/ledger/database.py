"""The database of a ledger: SQLite in WAL mode, or PostgreSQL.

Writers use the database driver directly, so that a question costs little more than its commit. The
lock is released at the commit, before the flush to disk, so that processes that wait at the same
time share one flush: PostgreSQL's own, or a flush of SQLite's log by the first of them. A crash
before the flush loses only entries at the end of the ledger, for which no answer was returned.

A commit to SQLite is durable only after `flush`.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from ..errors import HoldfastError, InvalidInput, LedgerUnavailable, TamperedLedger
from .entries import (
    CHECKPOINTS,
    COLUMNS,
    ENTRIES,
    IDENTITY,
    PAGE,
    PAGES,
    VERSION,
    Entry,
    migrate,
    version,
)
from .key_store import SlotFile, fsync_folder

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


BACKUP_TABLE = "holdfast_backup"
"""A table that a backup has, and a ledger has not."""

EXPECTED = 'expected an address like "sqlite:///ledger.db" or "postgresql://user@host/database"'
_PAGES_AT_ONCE = 16
_WAIT_SECONDS = 60  # limit on waiting for another process's transaction or for the server


class Database:
    """The database that stores the entries.

    Connections, and SQLite's log file for flushing, are opened when they are first needed. Only one
    thread at a time may use `transaction`; `flush` and `look_up` may be used meanwhile.
    """

    def __init__(self, address: str) -> None:
        self._url = _parse_address(address)
        self._file = _sqlite_file(self._url)
        self._engine = self._connect()
        self._open: dict[str, Writer | SqliteFlusher] = {}
        # LocalHandle while something is opened or closed, and while `flush` or `look_up` uses it.
        self.beside = threading.RLock()
        self._flush_failed = False
        self.on_failed_flush: Callable[[], None] = lambda: None
        self._seen: tuple[Any, ...] | None = None
        weakref.finalize(self, _close_all, self._engine, self._open, os.getpid())

    @property
    def address(self) -> str:
        """The full address, with an absolute path and any password."""
        return self._url.render_as_string(hide_password=False)

    @property
    def location(self) -> str:
        """The location of the database in a canonical form, without user and password."""
        if self._file is not None:
            return str(self._file)
        host = self._url.query.get("host") or (self._url.host or "").lower()
        return f"{host}:{self._url.port or 5432}/{self._url.database}"

    def is_file(self, path: Path) -> bool:
        """Return whether a path is that of SQLite's file."""
        return self._file is not None and path.resolve() == self._file

    @property
    def exists(self) -> bool:
        """Whether the database holds a ledger."""
        if self._file is not None and not self._file.exists():
            return False
        with self._translate_errors(), self._engine.connect() as connection:
            self._refuse_backup(connection)
            return version(connection) is not None

    def identity(self, create: Callable[[str], None]) -> str:
        """Return the ledger's identity.

        An empty database gets a new identity; `create(identity)` is called before it is written.
        """
        if self._file is not None:
            self._create_file(self._file)
        with self._translate_errors(), self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE" if self._file is not None else "BEGIN")
            try:
                if self._file is None:
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK_KEY})")
                identity = self._identify(connection, create)
                connection.exec_driver_sql("COMMIT")
            except BaseException:
                connection.exec_driver_sql("ROLLBACK")
                raise
            return identity

    def _create_file(self, file: Path) -> None:
        """Create SQLite's file, if there is none, so that nobody but its owner can read it.

        SQLite gives the files beside it the same permissions. An existing file is not opened:
        closing it would release the locks of all connections that this process has to it.
        """
        if file.exists():
            return
        new = file.with_name(f"{file.name}.{secrets.token_hex(4)}.new")
        try:
            os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            try:
                os.link(new, file)
            finally:
                new.unlink()
        except FileExistsError:
            return
        except OSError as error:
            raise LedgerUnavailable(
                f"{file}: cannot be opened for writing ({error.strerror}); nothing was answered"
            ) from error

    def _refuse_backup(self, connection: sa.Connection) -> None:
        if sa.inspect(connection).has_table(BACKUP_TABLE):
            raise InvalidInput(
                f"{self.location}: this is a backup of a ledger, not a ledger; restore it with "
                "`holdfast budget restore`"
            )

    def restore(self, identity: str, pages: Iterable[Sequence[Entry]]) -> None:
        """Create the tables, and store an identity and entries, in one transaction, on disk.

        Raises:
            InvalidInput: If there is a ledger already.
        """
        if self._file is not None:
            self._create_file(self._file)
        with self._translate_errors(), self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE" if self._file is not None else "BEGIN")
            try:
                self._refuse_backup(connection)
                if version(connection) is not None:
                    raise InvalidInput(
                        f"{self.location}: there is a ledger here already; move it away, or give "
                        "another address"
                    )
                migrate(connection)
                connection.execute(IDENTITY.insert(), {"identity": identity})
                for page in filter(None, pages):
                    connection.execute(ENTRIES.insert(), [entry._asdict() for entry in page])
                connection.exec_driver_sql("COMMIT")
            except BaseException:
                connection.exec_driver_sql("ROLLBACK")
                raise
        if self._file is not None:
            self.recover()  # writes the log to the file, and flushes it

    def _identify(self, connection: sa.Connection, create: Callable[[str], None]) -> str:
        self._refuse_backup(connection)
        found = version(connection)
        if found is not None and found > VERSION:
            raise LedgerUnavailable(
                f"{self.location}: tables of version {found}, from a newer holdfast; this one "
                f"reads version {VERSION}; upgrade holdfast"
            )
        if found != VERSION:
            migrate(connection)
        known = connection.execute(sa.select(IDENTITY.c.identity)).scalars().all()
        if len(known) > 1:
            raise TamperedLedger(
                f"{self.location}: holds {len(known)} identities; expected one; "
                "restore it from a copy"
            )
        if known:
            return str(known[0])
        if connection.execute(sa.select(ENTRIES.c.number).limit(1)).first() is not None:
            raise TamperedLedger(
                f"{self.location}: holds entries of a ledger whose identity is gone; "
                "restore it from a copy"
            )
        identity = secrets.token_hex(8)
        create(identity)
        connection.execute(IDENTITY.insert(), {"identity": identity})
        return identity

    @contextmanager
    def transaction(self, queue: SlotFile) -> Iterator[Writer]:
        """Give access to one writer at a time; what it has not committed at the end is rolled back.

        SQLite's writers wait for the lock of `queue`, which serves them in order; PostgreSQL's wait
        for its advisory lock.
        """
        with (
            queue.locked() if self._file is not None else nullcontext(),
            self._reported_transaction() as writer,
        ):
            yield writer

    @contextmanager
    def _reported_transaction(self) -> Iterator[Writer]:
        try:
            writer = self._writer()
            try:
                yield writer
            finally:
                writer.end()
        except (SQLAlchemyError, self._driver.Error) as error:
            # The state of the connection is unknown: the next transaction begins with a new one.
            self.close()
            raise self._as_holdfast_error(error, known=True) from error
        if self._file is not None and self._seen is None:
            self._seen = _file_ids(self._file)

    def flush(self) -> None:
        """Wait until all commits to SQLite are on disk.

        PostgreSQL's commits are on disk before `transaction` ends.

        Raises:
            LedgerUnavailable: If the log cannot be flushed.
        """
        with self.beside:
            if self._flush_failed:
                raise LedgerUnavailable(
                    f"{self.location}: was closed, and its log could not be flushed; "
                    "nothing was answered; ask again"
                )
            if "writer" in self._open:  # otherwise it was closed after a flush
                self._flusher().flush()

    def recover(self) -> None:
        """Recover from a failed flush of SQLite's log.

        Raises:
            LedgerUnavailable: If the database itself cannot be written and flushed.
        """
        if self._file is None:
            return  # the mark is that of a SQLite file from which the ledger was moved
        with self._translate_errors():
            writer = self._writer()
            assert isinstance(writer, SqliteWriter)
            writer.recover()
            self._flush_failed = False

    def look_up(self, first: int, last: int, most: int = PAGE) -> list[Entry]:
        """Return committed entries from number `first` to number `last`, at `most` so many.

        They are read on a connection of its own, beside any transaction.

        Raises:
            LedgerUnavailable: If they cannot be read.
            TamperedLedger: If the database's files were exchanged.
        """
        with self._look_ups() as connection:
            return connection.look_up(first, last, most)

    @contextmanager
    def _look_ups(self) -> Iterator[Writer]:
        """Give one thread at a time the connection for look-ups, which nobody closes meanwhile."""
        with self.beside, self._translate_errors():
            if "look-ups" not in self._open:
                self._open["look-ups"] = self._new_writer()
            connection = self._open["look-ups"]
            assert isinstance(connection, Writer)
            yield connection
            self.refuse_replaced_files()  # as long as nobody can close them

    def look_up_some(self, numbers: Sequence[int]) -> list[Entry]:
        """Return the entries with these numbers, as far as there are any, as `look_up` does."""
        if not numbers:
            return []
        with self._look_ups() as connection:
            connection.look_up(numbers[0], numbers[0], 1)  # renews one that the server has closed
            return connection.entries_at(numbers)

    def latest_checkpoint(self) -> tuple[int, str, bytes, str] | None:
        """Return number, nonce, content and seal of the latest checkpoint, if there is one."""
        newest = sa.select(CHECKPOINTS).order_by(CHECKPOINTS.c.number.desc()).limit(1)
        with self.beside, self._translate_errors(), self._engine.connect() as connection:
            row = connection.execute(newest).first()
        return None if row is None else (row.number, row.nonce, bytes(row.content), row.seal)

    def has_checkpoint(self, number: int) -> bool:
        """Return whether there is a checkpoint of this number or a later one."""
        later = sa.select(CHECKPOINTS.c.number).where(CHECKPOINTS.c.number >= number).limit(1)
        with self.beside, self._translate_errors(), self._engine.connect() as connection:
            return connection.execute(later).first() is not None

    def pages(self, count: int) -> Iterator[bytes]:
        """Yield the first pages, as far as they are there."""
        for first in range(0, count, _PAGES_AT_ONCE):
            chosen = PAGES.c.page.between(first, min(first + _PAGES_AT_ONCE, count) - 1)
            select = sa.select(PAGES.c.content).where(chosen).order_by(PAGES.c.page)
            with self.beside, self._translate_errors(), self._engine.connect() as connection:
                some = [bytes(page) for page in connection.execute(select).scalars()]
            yield from some

    def store_checkpoint(
        self, number: int, masked: tuple[str, bytes, str], pages: Mapping[int, bytes]
    ) -> None:
        """Store a checkpoint and its pages in the place of all others."""
        nonce, content, seal = masked
        about = {"number": number, "nonce": nonce, "content": content, "seal": seal}
        insert = postgresql.insert if self._file is None else sqlite.insert
        with self.beside, self._translate_errors(), self._engine.connect() as connection:
            for page, data in pages.items():  # the same in all processes that store them
                row = insert(PAGES).values(page=page, content=data)
                connection.execute(
                    row.on_conflict_do_update(index_elements=["page"], set_={"content": data})
                )
            row = insert(CHECKPOINTS).values(**about)
            connection.execute(row.on_conflict_do_update(index_elements=["number"], set_=about))
            connection.execute(sa.delete(CHECKPOINTS).where(CHECKPOINTS.c.number != number))

    def _writer(self) -> Writer:
        if "writer" not in self._open:
            with self.beside:
                self._open["writer"] = self._new_writer()
        writer = self._open["writer"]
        assert isinstance(writer, Writer)
        return writer

    def _new_writer(self) -> Writer:
        return (
            SqliteWriter(self._engine) if self._file is not None else PostgresWriter(self._engine)
        )

    def _flusher(self) -> SqliteFlusher:
        if "flusher" not in self._open:
            self._open["flusher"] = SqliteFlusher(Path(f"{self._file}-wal"))
        flusher = self._open["flusher"]
        assert isinstance(flusher, SqliteFlusher)
        return flusher

    def refuse_replaced_files(self) -> None:
        """Raise TamperedLedger if the database's files were replaced while they were open."""
        if self._file is None or self._seen is None or self._seen == _file_ids(self._file):
            return
        raise TamperedLedger(
            f"{self.location}: the database's files were exchanged while they were open; "
            "restore the latest copy, then close the ledger and open it again"
        )

    def is_copy_of(self, place: str, identity: str) -> bool:
        """Return whether another file of SQLite, at `place`, holds the ledger with this identity.

        Raises:
            LedgerUnavailable: If there is another file that cannot be read.
        """
        other = Path(place)
        if self._file is None or not other.is_absolute() or other == self._file:
            return False
        try:
            if not other.is_file():
                return False
            if other.samefile(self._file):
                if other.name == self._file.name and other.parent.samefile(self._file.parent):
                    return False  # a folder under two names
                raise InvalidInput(
                    f"{self._file}: is another name (a hard link) of {other}; SQLite has a log for "
                    "each name, so use that one, and remove this name"
                )
        except OSError:
            return False  # what cannot be seen here may still be in use: the head decides
        read_only = {"mode": "ro", "uri": "true"}
        url = sa.URL.create("sqlite", database=f"file:{quote(place)}", query=read_only)
        engine = sa.create_engine(url)
        try:
            with engine.connect() as connection:
                return identity in connection.execute(sa.select(IDENTITY.c.identity)).scalars()
        except SQLAlchemyError as error:
            if any(text in str(error) for text in ("no such table", "not a database", "malformed")):
                return False  # whatever it is, nobody can answer from it
            raise LedgerUnavailable(
                f"{other}: the ledger was here before it was at {self._file}, and it cannot be "
                f"read whether it still is ({error.__cause__}); remove it if it is not used"
            ) from error
        finally:
            engine.dispose()

    def close(self) -> None:
        """Close all connections, after a flush, for which another thread may still be waiting."""
        with self.beside:
            if self._file is not None and "writer" in self._open:
                self._try_flush()
            _close_all(self._engine, self._open, os.getpid())
            self._seen = None

    def _try_flush(self) -> None:
        """Flush; a failure is remembered until `recover`, for the threads that wait for a flush."""
        try:
            self._flusher().flush()
        except LedgerUnavailable:
            self._flush_failed = True
            self.on_failed_flush()

    @property
    def _driver(self) -> Any:
        return self._engine.dialect.loaded_dbapi

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, self._driver.Error) as error:
            raise self._as_holdfast_error(error) from error

    def _as_holdfast_error(self, error: Exception, known: bool = False) -> HoldfastError:
        """Convert an error of the database to one of holdfast.

        `known` means that a ledger was found here before.
        """
        reason = getattr(error, "orig", None) or error
        text = f"{self.location}: {str(reason).strip()}; nothing was answered"
        gone = type(reason).__name__ in (
            "DatabaseError",
            "UndefinedTable",
            "UndefinedColumn",
        ) or "no such" in str(reason)
        if isinstance(reason, self._driver.IntegrityError) or (known and gone):
            return TamperedLedger(text)
        return LedgerUnavailable(text)

    def _connect(self) -> sa.Engine:
        """Create the engine, with a driver that begins no transactions of its own."""
        waits = (
            {"connect_timeout": 10, "tcp_user_timeout": 1000 * _WAIT_SECONDS}
            if self._file is None
            else {"timeout": _WAIT_SECONDS}
        )
        engine = sa.create_engine(self._url, isolation_level="AUTOCOMMIT", connect_args=waits)
        sa.event.listen(
            engine, "connect", _prepare_postgres if self._file is None else _prepare_sqlite
        )
        return engine


def _close_all(engine: sa.Engine, held: dict[str, Writer | SqliteFlusher], process: int) -> None:
    if process != os.getpid():
        return  # forked in the middle of a transaction: the connection is the parent's
    while held:
        held.popitem()[1].close()
    engine.dispose()


def _parse_address(address: str) -> sa.URL:
    try:
        url = sa.make_url(address)
    except (ArgumentError, ValueError):
        raise InvalidInput(f"ledger: this is not the address of a database; {EXPECTED}") from None
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        if url.database in (None, "", ":memory:"):
            raise InvalidInput(f"{address}: a ledger in memory forgets what was spent; {EXPECTED}")
        if url.query or url.host or "\0" in str(url.database):
            raise InvalidInput(
                "ledger: an address of SQLite is sqlite:/// and a path, "
                f"without host or options; {EXPECTED}"
            )
        return url.set(database=str(Path(str(url.database)).resolve()))
    if url.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        try:
            import psycopg  # noqa: F401
        except ImportError:
            raise InvalidInput(
                "a ledger in PostgreSQL needs an extra: pip install 'holdfast[postgres]'"
            ) from None
        return url.set(drivername="postgresql+psycopg")
    raise InvalidInput(
        f"ledger: a database of kind {url.drivername!r} is not supported; {EXPECTED}"
    )


def has_password(address: str) -> bool:
    """Return whether an address holds a password."""
    try:
        url = sa.make_url(address)
    except (ArgumentError, ValueError):
        return False
    return bool(url.password) or "password" in url.query


def _sqlite_file(url: sa.URL) -> Path | None:
    if url.get_backend_name() != "sqlite":
        return None
    file = Path(str(url.database))
    if not file.parent.is_dir():
        raise InvalidInput(f"{file}: the folder {file.parent} does not exist; create it first")
    return file


def _prepare_sqlite(connection: Any, _: Any) -> None:
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    # The file is never corrupt; `flush` waits until the last commits are on disk, too.
    connection.execute("PRAGMA synchronous=NORMAL")
    if mode != "wal":
        raise LedgerUnavailable(
            f"SQLite cannot use its write-ahead log here (journal_mode={mode}); "
            "put the ledger on a local disk"
        )


def _prepare_postgres(connection: Any, _: Any) -> None:
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = on")
        cursor.execute(f"SET lock_timeout = '{_WAIT_SECONDS}s'")
        cursor.execute(f"SET statement_timeout = '{_WAIT_SECONDS}s'")
        flushed = cursor.execute("SHOW fsync").fetchone()[0]
        standby, read_only = cursor.execute(
            "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::boolean"
        ).fetchone()
    if standby or read_only:
        raise LedgerUnavailable(
            f"this PostgreSQL {'server is a standby' if standby else 'connection is read-only'}, "
            "where nothing can be charged; nothing was answered; connect to the primary server, "
            "with a user who may write"
        )
    if flushed != "on":
        raise LedgerUnavailable(
            "the PostgreSQL server runs with fsync = off and may lose what was spent; turn fsync on"
        )


def _file_ids(file: Path) -> tuple[Any, ...]:
    """Return the device and inode of each of the database's files at this moment."""
    found = []
    for ending in ("", "-wal", "-shm"):
        try:
            about = os.stat(f"{file}{ending}")
            found.append((about.st_dev, about.st_ino))
        except FileNotFoundError:
            found.append((0, 0))
    return tuple(found)
