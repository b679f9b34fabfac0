"""Backups of a ledger: one file for both kinds of database, restored without a refund.

A restored ledger charges what was spent after the backup was made: the head outside the database
keeps the totals of each data set. It goes on in the place of the old database, which is refused
from then on (docs/theory/ledger.md).
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..accounting.renyi import Amount
from ..checks import refuse_unwritable
from ..errors import DamagedFile, InvalidInput, TamperedLedger
from .accounts import Account
from .database import BACKUP_TABLE, Database
from .entries import COLUMNS, PAGE, RESTORE, Entry, Head, mask_answer
from .key_store import KeyStore, Slot, Totals, default_home, fsync_folder
from .transaction import Reader

if TYPE_CHECKING:
    from .ledger import Ledger

_FORMAT = 1
_ENTRIES = "backup_entries"
_UNKNOWN = "a backup was restored, and what was spent after it is not known: charged in full"
_WAS_CLOSED = "it had been closed after the backup that was restored"
_WAS_RAISED = "it had been raised, and spent, after the backup that was restored"
_WAS_GRANTED = "it had been granted after the backup that was restored"


@dataclass(frozen=True)
class Restored:
    """What restoring a backup has done.

    Attributes:
        entries: How many entries the backup holds.
        lost: How many entries were written after it; their answers are gone.
        charged: For each data set, the part of its budget that was charged for what is gone.
        closed: The data sets that came back closed, each with the reason.
    """

    entries: int
    lost: int
    charged: dict[str, float]
    closed: dict[str, str]


def write_backup(ledger: Ledger, path: str | PathLike[str]) -> int:
    """Write all entries that the head covers to a file, verified; return how many there are.

    Args:
        ledger: The ledger; it may be in use.
        path: The file to write. Answers are masked in it, and only its owner can read it.

    Raises:
        InvalidInput: If the file cannot be written.
        TamperedLedger: If an entry is not what was written.
        LedgerUnavailable: If the ledger cannot be read.
    """
    path = Path(path)
    refuse_unwritable(path)
    ledger.refuse_own_file(path)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(part, isolation_level=None)) as file:
            count = _write(file, ledger)
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(path)
        fsync_folder(path.absolute().parent)
    except (OSError, sqlite3.Error) as error:
        raise InvalidInput(f"{path}: the backup cannot be written ({error})") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return count


def _write(file: sqlite3.Connection, ledger: Ledger) -> int:
    file.execute("BEGIN")
    file.execute(f"CREATE TABLE {BACKUP_TABLE} (format, identity, number, seal, made)")
    file.execute(f"CREATE TABLE {_ENTRIES} ({', '.join(COLUMNS)})")
    insert = f"INSERT INTO {_ENTRIES} VALUES ({', '.join('?' * len(COLUMNS))})"
    last, count = Head(), 0
    for page in ledger.pages():  # up to an entry that the head covers: a later one may be lost
        file.executemany(insert, [mask_answer(entry, ledger.key_store().key) for entry in page])
        last, count = Head(page[-1].number, page[-1].seal), count + len(page)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    about = (_FORMAT, ledger.key_store().identity, *last, made)
    file.execute(f"INSERT INTO {BACKUP_TABLE} VALUES (?, ?, ?, ?, ?)", about)
    file.execute("COMMIT")
    return count


def restore_backup(
    path: str | PathLike[str], address: str, *, home: str | PathLike[str] | None = None
) -> Restored:
    """Make a ledger from a backup, in the place of the one whose head is in the home folder.

    What was spent after the backup was made is charged; nothing is refunded. Answers, shares and
    releases that were recorded after it are gone: asked again, they are charged again. All access
    keys and all sparse-vector sessions end. The old database, if it still exists, is refused from
    then on. Nobody may use the ledger meanwhile.

    Args:
        path: The file that `Ledger.backup` wrote.
        address: Where the ledger shall be: a database of either kind that holds no ledger.
        home: The folder that holds the ledger's key and head; by default as for `Ledger`.

    Raises:
        InvalidInput: If there is a ledger at the address already.
        DamagedFile: If the file is no backup.
        TamperedLedger: If an entry of the backup is not what was written, if backup and head do not
            belong to one history, or if somebody used the ledger meanwhile.
        LedgerUnavailable: If the database or the home folder cannot be written.

    Guarantees:
        What left the ledger over its whole history, before and after, is within the limit of each
        data set, as far as the head knew it. Nothing that was answered is free unless it is in the
        backup. At most one of the old and the restored database can be used afterwards.

    Example:
        >>> import holdfast as hf
        >>> ledger = hf.Ledger("sqlite:///budgets.db", home="keys")
        >>> _ = ledger.create_budget("ward-7", hf.Budget(10.0, 1e-5), queries=1000)
        >>> _ = ledger.backup("budgets.backup")
        >>> hf.ledger.restore_backup("budgets.backup", "sqlite:///new.db", home="keys").entries
        1
    """
    path, folder = Path(path), (default_home() if home is None else Path(home)).absolute()
    database = Database(address)
    with closing(_opened(path)) as file:
        about = _about(file, path)
        key_store = KeyStore(folder, str(about["identity"]))
        outside, reader = key_store.head(), Reader()
        count = 0
        for page in _pages(file, path):
            reader.read_page(page, key_store.key)
            count += len(page)
        if not reader.books.names:
            raise DamagedFile(f"{path}: the backup holds no budget; there is nothing to restore")
        before, end = reader.head.number, _end(path, about, reader, outside.head)
        entries = _restore_entries(reader, end, outside, key_store)
        masked = [mask_answer(entry, key_store.key) for entry in entries]
        database.restore(key_store.identity, _and_then(_pages(file, path), masked))
    place = database.location
    database.close()
    key_store.replace_head(outside, Slot(reader.head, place, dict(reader.books.totals())))
    key_store.forget_failed_flush()  # of the old database, which nobody can use any more
    key_store.record_datasets(reader.books.names, place)
    return _report(count, end.number - before, entries, reader)


def _opened(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise DamagedFile(f"{path}: no such file; expected a backup by `holdfast budget backup`")
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)


def _about(file: sqlite3.Connection, path: Path) -> dict[str, Any]:
    try:
        names = ("format", "identity", "number", "seal")
        (row,) = file.execute(f"SELECT {', '.join(names)} FROM {BACKUP_TABLE}").fetchall()
    except (sqlite3.Error, ValueError) as error:
        raise DamagedFile(
            f"{path}: not a backup of a ledger ({error}); expected a file that `holdfast budget "
            "backup` has written"
        ) from error
    if row[0] != _FORMAT:
        raise DamagedFile(f"{path}: a backup of format {row[0]!r}; expected format {_FORMAT}")
    return dict(zip(names, row, strict=True))


def _pages(file: sqlite3.Connection, path: Path) -> Iterator[list[Entry]]:
    try:
        rows = file.execute(f"SELECT {', '.join(COLUMNS)} FROM {_ENTRIES} ORDER BY number")
        while page := rows.fetchmany(PAGE):
            yield [Entry._make(row) for row in page]
    except sqlite3.Error as error:
        raise DamagedFile(f"{path}: cannot be read ({error}); use another backup") from error


def _and_then(pages: Iterator[list[Entry]], last: list[Entry]) -> Iterator[list[Entry]]:
    yield from pages
    yield last


def _end(path: Path, about: dict[str, Any], reader: Reader, outside: Head) -> Head:
    """Return the last entry of the history: that of the backup or, if it is later, the head.

    The head may be behind the backup, because a power cut can set it back.
    """
    if (about["number"], about["seal"]) != tuple(reader.head):
        raise DamagedFile(f"{path}: the backup is not complete; use another one")
    if outside.number <= reader.head.number:
        if outside.number and not reader.knows(outside):
            raise TamperedLedger(
                f"{path}: entry {outside.number} is another one than the head outside the database "
                "names: this backup is not of the ledger that was used last"
            )
        return reader.head
    return outside


def _restore_entries(reader: Reader, end: Head, outside: Slot, key_store: KeyStore) -> list[Entry]:
    """Return sealed entries, one for each data set, that charge what was spent after the backup."""
    complete, first = end == reader.head, end.number + 1
    before = {"entries": reader.head.number, "number": end.number, "seal": end.seal}
    known = reader.books.accounts
    names = dict.fromkeys([*reader.books.names, *outside.totals, *key_store.recorded_datasets()])
    entries = []
    for number, name in enumerate(names, first):
        account, total = known.get(name), outside.totals.get(name)
        amount, beyond, closed = Amount(), 0, ""
        if account is None:
            closed = _WAS_GRANTED
        elif complete:
            beyond = account.beyond.loss
        else:
            amount, beyond, closed = _lost(account, total)
        about = {**before, "beyond": str(beyond), "closed": closed}
        time_now = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = Entry(number, time_now, RESTORE, name, about=json.dumps(about))
        entry = entry._replace(loss=str(amount.loss), leak=str(amount.leak))
        entry = entry._replace(seal=entry.compute_seal(key_store.key, reader.head.seal))
        reader.enter(entry)
        entries.append(entry)
    return entries


def _lost(account: Account, total: Totals | None) -> tuple[Amount, int, str]:
    """Return what an account spent after the backup, what is beyond its budget, why it closes."""
    limit, spent = account.terms.limit, account.spent
    if total is None:
        rest = limit - spent
        return Amount(max(0, rest.loss), max(0, rest.leak)), account.beyond.loss, _UNKNOWN
    then = Amount(total.loss, total.leak)
    amount = Amount(max(0, then.loss - spent.loss), max(0, then.leak - spent.leak))
    closed = "" if account.closed or not total.closed else _WAS_CLOSED
    if not then.within(limit):
        closed = _WAS_RAISED
    return amount, total.beyond, closed


def _report(count: int, lost: int, entries: list[Entry], reader: Reader) -> Restored:
    charged, closed = {}, {}
    for entry in entries:
        account = reader.books.accounts.get(entry.dataset)
        if account is not None:
            charged[entry.dataset] = int(entry.loss) / account.terms.limit.loss
        if reason := json.loads(entry.about)["closed"]:
            closed[entry.dataset] = reason
    return Restored(count, lost, charged, closed)
