"""Safe: the owner's key and the head of the ledger, kept outside the database.

Whoever can write to the database but not here cannot change, drop or rewind an entry unnoticed. The head is written
after each commit and before the answer leaves, in two places by turns, so that a torn write loses nothing.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
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
    """Key and head of one ledger, in the files IDENTITY.key and IDENTITY.head of a folder."""

    def __init__(self, home: Path, identity: str) -> None:
        if not _IDENTITY.fullmatch(identity):
            raise TamperedLedger(f"the database names itself {identity!r}: expected 16 hexadecimal digits")
        self._key_path, self._head_path = home / f"{identity}.key", home / f"{identity}.head"
        self.key = self._read_key()
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
    def opened(self) -> Iterator[HeldHead]:
        """The head, held by nobody else meanwhile: processes queue here, in order, rather than at the database."""
        with self._locked() as file:
            yield HeldHead(self, file, *self._read(file))

    def write(self, file: int, slot: int, head: Head, place: str) -> None:
        """Write a head into one of the two slots."""
        try:
            os.pwrite(file, _slot(self.key, head, place), slot * _SLOT)
            if time.monotonic() - self._synced > _SYNC_SECONDS:
                os.fsync(file)
                self._synced = time.monotonic()
        except OSError as error:
            raise LedgerUnavailable(f"{self._head_path}: the ledger's head cannot be written ({error}); ask again") from error

    @contextmanager
    def _locked(self) -> Iterator[int]:
        try:
            file = os.open(self._head_path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise TamperedLedger(f"{self._head_path}: the ledger's head, kept outside the database, is gone; restore it") from None
        except OSError as error:
            raise LedgerUnavailable(f"{self._head_path}: the ledger's head cannot be opened ({error}); nothing was answered") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile holds the file open, and must not hold the lock
            os.close(file)

    def _read(self, file: int) -> tuple[int, Head]:
        """The slot with the latest head, and the head."""
        abouts = {slot: _parsed(os.pread(file, _SLOT, slot * _SLOT)) for slot in (0, 1)}
        for slot, about in sorted(abouts.items(), key=lambda one: -1 if one[1] is None else one[1]["number"], reverse=True):
            if about is not None and _sealed(self.key, about):
                return slot, Head(about["number"], about["seal"])
        raise TamperedLedger(f"{self._head_path}: damaged, or written with another key; restore it from a copy")

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


class HeldHead:
    """The head as it is in the file."""

    def __init__(self, safe: Safe, file: int, slot: int, head: Head) -> None:
        self.key, self.head = safe.key, head
        self._safe, self._file, self._slot = safe, file, slot

    def advance(self, head: Head, place: str) -> None:
        """Write a later head into the other slot. `place`: of the database, to notice when it is gone."""
        if head.number > self.head.number:
            self._slot, self.head = 1 - self._slot, head
            self._safe.write(self._file, self._slot, head, place)


def keyed_hash(key: bytes, *parts: bytes) -> bytes:
    """Of the parts, each told apart by its length; never what an entry or a head is sealed with."""
    sizes = b"".join(len(part).to_bytes(8, "big") for part in parts)
    return hmac.digest(key, b"".join([b"holdfast hash", sizes, *parts]), "sha256")


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
