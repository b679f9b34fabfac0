"""Safe: the owner's key and the head of the ledger, kept outside the database.

Whoever can write to the database but not here cannot change, drop or rewind an entry unnoticed. The head is written
after the entries are on disk and before the answer leaves, into two slots alternately, so that a torn write loses
nothing.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ..errors import LedgerUnavailable, TamperedLedger
from .entries import Head
from .slots import SLOT, SlotFile, parse_slot, sealed_slot

_SYNC_SECONDS = 1.0
_IDENTITY = re.compile("[0-9a-f]{16}")


def default_home() -> Path:
    """The folder of keys and heads: HOLDFAST_HOME, or .holdfast in the user's home."""
    return Path(os.environ.get("HOLDFAST_HOME") or Path.home() / ".holdfast")


class Safe:
    """Key and head of one ledger, in the files IDENTITY.key and IDENTITY.head of a folder.

    IDENTITY.queue is where writers wait, and where they announce what they have committed: its slot names an entry that may
    not be on disk yet.
    """

    def __init__(self, home: Path, identity: str) -> None:
        if not _IDENTITY.fullmatch(identity):
            raise TamperedLedger(f"the database names itself {identity!r}: expected 16 hexadecimal digits")
        self.identity = identity
        self._key_path = home / f"{identity}.key"
        self.key = self._read_key()
        self._head = SlotFile(home / f"{identity}.head", self.key)
        self.queue = SlotFile(home / f"{identity}.queue", self.key, create=True)
        self._failure_path = home / f"{identity}.unflushed"
        self._names_path = home / f"{identity}.datasets"
        self._remembered: list[str] | None = None
        self._synced = 0.0

    @staticmethod
    def create(home: Path, identity: str, place: str) -> None:
        """A new key, for a ledger without entries."""
        key = secrets.token_bytes(32)
        try:
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write_whole(home / f"{identity}.key", key.hex().encode())
            _write_whole(home / f"{identity}.head", sealed_slot(key, Head(), place) + b"\0" * SLOT)
            fsync_folder(home)
        except OSError as error:
            raise LedgerUnavailable(f"{home}: cannot hold the ledger's key ({error}); set HOLDFAST_HOME to a folder that can") from error

    def head(self) -> Head:
        """Return the head: all entries up to it are on disk, and answers have left for no others."""
        latest = _latest(self._head)
        if latest is None:  # somebody was writing just now, or it is damaged
            again = SlotFile(self._head.path, self.key)
            with again.locked():
                latest = _latest(again) or _damaged(again)
        return latest[1]

    def settle(self, head: Head, flush: Callable[[], None] | None, place: str) -> Head:
        """Advance the head to `head` or beyond, once all entries up to there are on disk.

        Whoever comes first also settles what others have announced meanwhile, so that they need no flush of their own.

        Args:
            head: The last entry that must be on disk.
            flush: Waits until all that is committed is on disk; None if `head` is on disk already.
            place: Where the database is, to notice when it is gone.

        Returns:
            The head as it is now, which may be a later one.

        Raises:
            LedgerUnavailable: If the disk does not take it.
        """
        with self._head.locked():
            slot, settled = _latest(self._head) or _damaged(self._head)
            if settled.number >= head.number:
                return settled
            head = head if flush is None else self._flushed(head, flush)
            due = time.monotonic() - self._synced > _SYNC_SECONDS
            self._head.write(1 - slot, head, place, flush=due)
            self._synced = time.monotonic() if due else self._synced
            return head

    @property
    def flush_failed(self) -> bool:
        """Whether a flush of the database's log has failed, in whatever process, and nothing has made up for it."""
        return self._failure_path.exists()

    def note_failed_flush(self) -> None:
        """Keep in mind, for all processes, that the log cannot be trusted: the kernel reports a lost page only once."""
        self._failure_path.touch(mode=0o600)

    def forget_failed_flush(self) -> None:
        """Trust the log again, after all that it holds was written and flushed elsewhere."""
        self._failure_path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the files."""
        self._head.close()
        self.queue.close()

    def _flushed(self, head: Head, flush: Callable[[], None]) -> Head:
        """Flush; return up to where all entries are on disk: what was announced before, or at least `head`."""
        announced = self.queue.read(0)
        try:
            flush()
        except LedgerUnavailable:
            self.note_failed_flush()
            raise
        if self.flush_failed:  # in another process, to which alone the kernel may have told it
            raise LedgerUnavailable("the database's log could not be flushed to the disk; nothing was answered; ask again")
        return head if announced is None else max(head, announced, key=lambda one: one.number)

    def remember(self, names: Iterable[str], place: str) -> None:
        """Note which data sets have a budget in this ledger, so that another ledger of this home can tell."""
        current = sorted(names)
        if self._remembered == current:
            return
        # Forgotten by a crash, it is written again by the next process that opens the ledger.
        try:
            _write_whole(self._names_path, json.dumps({"place": place, "datasets": current}).encode())
        except OSError as error:
            raise LedgerUnavailable(f"{self._names_path}: cannot be written ({error}); nothing was answered") from error
        self._remembered = current

    def _read_key(self) -> bytes:
        try:
            key = bytes.fromhex(self._key_path.read_text().strip())
        except FileNotFoundError:
            raise TamperedLedger(
                f"{self._key_path}: the key of this ledger is not here; bring it, or set HOLDFAST_HOME to the folder that holds it"
            ) from None
        except OSError as error:
            raise LedgerUnavailable(f"{self._key_path}: the key of this ledger cannot be read ({error}); nothing was answered") from error
        except ValueError as error:
            raise TamperedLedger(f"{self._key_path}: not a key ({error}); restore it from a copy") from error
        if len(key) != 32:
            raise TamperedLedger(f"{self._key_path}: expected a key of 32 bytes, found {len(key)}; restore it from a copy")
        return key


def _latest(file: SlotFile) -> tuple[int, Head] | None:
    """Return the slot with the latest head, and the head; None if neither is whole."""
    heads = [(slot, head) for slot in (0, 1) if (head := file.read(slot)) is not None]
    return max(heads, key=lambda one: one[1].number, default=None)


def _damaged(file: SlotFile) -> NoReturn:
    raise TamperedLedger(f"{file.path}: damaged, or written with another key; restore it from a copy")


def fsync_folder(folder: Path) -> None:
    """Wait until the names of the folder's files are on disk."""
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def keyed_hash(key: bytes, *parts: bytes) -> bytes:
    """Of the parts, each told apart by its length; never what an entry or a head is sealed with."""
    sizes = b"".join(len(part).to_bytes(8, "big") for part in parts)
    return hmac.digest(key, b"".join([b"holdfast hash", sizes, *parts]), "sha256")


def other_ledgers_with(home: Path, name: str, identity: str | None) -> list[str]:
    """Return the places of the ledgers of this home, other than the one with `identity`, in which a data set has a budget."""
    places = []
    for path in sorted(home.glob("*.datasets")):
        try:
            about = json.loads(path.read_text())
            if name in about["datasets"] and path.stem != identity:
                places.append(str(about["place"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LedgerUnavailable(f"{path}: a ledger's list of data sets cannot be read ({error}); repair or remove it") from error
    return places


@contextmanager
def locked_home(home: Path) -> Iterator[None]:
    """Let one process at a time grant budgets, so that two new ledgers cannot be unaware of each other."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(home / "grants.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LedgerUnavailable(f"{home}: cannot hold the ledger's key ({error}); set HOLDFAST_HOME to a folder that can") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def lived_at(home: Path, place: str) -> Path | None:
    """The head file of a ledger with entries whose database was last seen at `place`."""
    for path in sorted(home.glob("*.head")):
        try:
            with path.open("rb") as file:
                slots = [parse_slot(file.read(SLOT)) for _ in range(2)]
        except OSError as error:
            raise LedgerUnavailable(f"{path}: a ledger's head cannot be read ({error}); nothing was answered") from error
        abouts = [about for about in slots if about is not None]
        if not abouts:  # it may be that of the ledger that was here
            raise TamperedLedger(f"{path}: damaged; restore it from a copy, or take it away if it is not a ledger's head")
        latest = max(abouts, key=lambda about: about["number"])
        if latest["number"] > 0 and latest["place"] == place:
            return path
    return None


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read; it is there whole or not at all."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if os.write(file, content) != len(content):
                raise OSError("written in part only")
            os.fsync(file)
        finally:
            os.close(file)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
