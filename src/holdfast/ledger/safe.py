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
from typing import Any

from ..errors import LedgerUnavailable, TamperedLedger
from .entries import Head

_SLOT = 2048  # bytes
_SYNC_SECONDS = 1.0
_IDENTITY = re.compile("[0-9a-f]{16}")


def default_home() -> Path:
    """The folder of keys and heads: HOLDFAST_HOME, or .holdfast in the user's home."""
    return Path(os.environ.get("HOLDFAST_HOME") or Path.home() / ".holdfast")


class Safe:
    """Key and head of one ledger, in the files IDENTITY.key and IDENTITY.head of a folder; IDENTITY.queue is where writers wait."""

    def __init__(self, home: Path, identity: str) -> None:
        if not _IDENTITY.fullmatch(identity):
            raise TamperedLedger(f"the database names itself {identity!r}: expected 16 hexadecimal digits")
        self.identity = identity
        self._key_path, self._head_path, self._queue_path = (home / f"{identity}.{ending}" for ending in ("key", "head", "queue"))
        self.key = self._read_key()
        self._names_path = home / f"{identity}.datasets"
        self._remembered: list[str] | None = None
        self._synced = 0.0

    @staticmethod
    def create(home: Path, identity: str, place: str) -> None:
        """A new key, for a ledger without entries."""
        key = secrets.token_bytes(32)
        try:
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write_new(home / f"{identity}.key", key.hex().encode())
            _write_new(home / f"{identity}.head", _slot(key, Head(), place) + b"\0" * _SLOT)
            folder = os.open(home, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
        except OSError as error:
            raise LedgerUnavailable(f"{home}: cannot hold the ledger's key ({error}); set HOLDFAST_HOME to a folder that can") from error

    @contextmanager
    def queue(self) -> Iterator[Queue]:
        """Wait for the turn to write: processes queue here, in order, rather than at the database."""
        with _locked(self._queue_path, os.O_CREAT) as file:
            yield Queue(self.key, file)

    def head(self) -> Head:
        """Return the head: all entries up to it are on disk, and answers have left for no others."""
        with _opened(self._head_path) as file:
            found = self._read(file)
        if found is None:  # somebody was writing just now, or it is damaged
            with self._locked_head() as (_, _, head):
                return head
        return found[1]

    def settle(self, head: Head, flush: Callable[[Head], bool], place: str) -> Head:
        """Advance the head to `head` or beyond, after `flush` has put all entries up to there on disk.

        Whoever comes first also settles what others have announced meanwhile, so that they need no flush of their own.

        Args:
            head: The last entry that must be on disk.
            flush: Waits for the disk; returns whether the entry given is there.
            place: Where the database is, to notice when it is gone.

        Returns:
            The head as it is now, which may be a later one.

        Raises:
            LedgerUnavailable: If the entry was lost before it was on disk.
        """
        with self._locked_head() as (file, slot, settled):
            if settled.number >= head.number:
                return settled
            announced = self._announced()
            latest = announced if announced.number > head.number and flush(announced) else head
            if latest is head and not flush(head):
                raise LedgerUnavailable(f"the database lost entry {head.number} in a crash; nothing was answered; ask again")
            self._write(file, 1 - slot, latest, place)
            return latest

    def remember(self, names: Iterable[str], place: str) -> None:
        """Note which data sets have a budget in this ledger, so that another ledger of this home can tell."""
        current = sorted(names)
        if self._remembered == current:
            return
        # Forgotten by a crash, it is written again by the next process that opens the ledger.
        temporary = self._names_path.with_suffix(".part")
        try:
            temporary.write_text(json.dumps({"place": place, "datasets": current}))
            temporary.replace(self._names_path)
        except OSError as error:
            raise LedgerUnavailable(f"{self._names_path}: cannot be written ({error}); nothing was answered") from error
        self._remembered = current

    def _announced(self) -> Head:
        """Return what the last holder of the turn committed, as far as it can be read: nobody else is kept from writing it."""
        with _opened(self._queue_path) as file:
            about = _parsed(os.pread(file, _SLOT, 0))
        return Head(about["number"], about["seal"]) if about is not None and _sealed(self.key, about) else Head()

    def _write(self, file: int, slot: int, head: Head, place: str) -> None:
        """Write a head into one of the two slots."""
        try:
            os.pwrite(file, _slot(self.key, head, place), slot * _SLOT)
            if time.monotonic() - self._synced > _SYNC_SECONDS:
                os.fsync(file)
                self._synced = time.monotonic()
        except OSError as error:
            raise LedgerUnavailable(f"{self._head_path}: the ledger's head cannot be written ({error}); ask again") from error

    @contextmanager
    def _locked_head(self) -> Iterator[tuple[int, int, Head]]:
        """The file of the head, the slot with the latest one, and that head; nobody else writes meanwhile."""
        with _locked(self._head_path) as file:
            found = self._read(file)
            if found is None:
                raise TamperedLedger(f"{self._head_path}: damaged, or written with another key; restore it from a copy")
            yield file, *found

    def _read(self, file: int) -> tuple[int, Head] | None:
        """Return the slot with the latest head, and the head; None if neither is whole."""
        abouts = {slot: _parsed(os.pread(file, _SLOT, slot * _SLOT)) for slot in (0, 1)}
        for slot, about in sorted(abouts.items(), key=lambda one: -1 if one[1] is None else one[1]["number"], reverse=True):
            if about is not None and _sealed(self.key, about):
                return slot, Head(about["number"], about["seal"])
        return None

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


class Queue:
    """The turn to write, which this process holds."""

    def __init__(self, key: bytes, file: int) -> None:
        self._key, self._file = key, file

    def announce(self, head: Head) -> None:
        """Tell whoever flushes next that all entries up to `head` are committed."""
        try:
            os.pwrite(self._file, _slot(self._key, head, ""), 0)
        except OSError as error:
            raise LedgerUnavailable(f"the ledger's queue cannot be written ({error}); nothing was answered") from error


@contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[int]:
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    except FileNotFoundError:
        raise TamperedLedger(f"{path}: the ledger's head, kept outside the database, is gone; restore it") from None
    except OSError as error:
        raise LedgerUnavailable(f"{path}: the ledger's head cannot be opened ({error}); nothing was answered") from error
    try:
        yield file
    finally:
        os.close(file)


@contextmanager
def _locked(path: Path, flags: int = 0) -> Iterator[int]:
    with _opened(path, flags) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile holds the file open, and must not hold the lock


def keyed_hash(key: bytes, *parts: bytes) -> bytes:
    """Of the parts, each told apart by its length; never what an entry or a head is sealed with."""
    sizes = b"".join(len(part).to_bytes(8, "big") for part in parts)
    return hmac.digest(key, b"".join([b"holdfast hash", sizes, *parts]), "sha256")


def other_ledgers_with(home: Path, name: str, place: str) -> list[str]:
    """Return the places of the ledgers of this home, other than `place`, in which a data set has a budget."""
    places = set()
    for path in sorted(home.glob("*.datasets")):
        try:
            about = json.loads(path.read_text())
            if name in about["datasets"]:
                places.add(str(about["place"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LedgerUnavailable(f"{path}: a ledger's list of data sets cannot be read ({error}); repair or remove it") from error
    return sorted(places - {place})


def lived_at(home: Path, place: str) -> Path | None:
    """The head file of a ledger with entries whose database was last seen at `place`."""
    for path in sorted(home.glob("*.head")):
        try:
            with path.open("rb") as file:
                slots = [_parsed(file.read(_SLOT)) for _ in range(2)]
        except OSError as error:
            raise LedgerUnavailable(f"{path}: a ledger's head cannot be read ({error}); nothing was answered") from error
        abouts = [about for about in slots if about is not None]
        if not abouts:  # it may be that of the ledger that was here
            raise TamperedLedger(f"{path}: damaged; restore it from a copy, or take it away if it is not a ledger's head")
        latest = max(abouts, key=lambda about: about["number"])
        if latest["number"] > 0 and latest["place"] == place:
            return path
    return None


def _slot(key: bytes, head: Head, place: str) -> bytes:
    text = json.dumps({"number": head.number, "seal": head.seal, "place": place})
    line = f"{hmac.digest(key, text.encode(), 'sha256').hex()} {text}\n".encode()
    return line.ljust(_SLOT, b"\0")


def _sealed(key: bytes, about: dict[str, Any]) -> bool:
    return hmac.compare_digest(hmac.digest(key, about["text"], "sha256").hex().encode(), about["mark"])


def _parsed(slot: bytes) -> dict[str, Any] | None:
    mark, _, text = slot.partition(b"\n")[0].partition(b" ")
    try:
        about = json.loads(text)
        return {name: about[name] for name in ("number", "seal", "place")} | {"text": text, "mark": mark}
    except (ValueError, TypeError, KeyError):
        return None


def _write_new(path: Path, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(file, content)
    os.fsync(file)
    os.close(file)
