"""The owner's key and the head of the ledger, kept in files outside the database.

A file has one or two slots. Each holds the number and seal of an entry, the location of the
database, and a keyed hash of all three. Files are locked with `flock`, which also makes processes
wait in order.

Somebody who can write to the database but not to these files cannot change, drop or roll back an
entry unnoticed. The head is written after the entries are on disk and before the answer is
returned, into two slots alternately, so that a torn write loses nothing.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ..checks import canonical_name
from ..errors import CopiedLedger, InvalidInput, LedgerUnavailable, TamperedLedger
from .entries import Head

_LOCK_OWNER_THREADS: dict[Path, int] = {}  # the thread of this process that holds a file's lock

SLOT_BYTES = 2048
"""Bytes per slot."""


class Totals(NamedTuple):
    """What was spent of a budget, and what it allows, in whole units of its meter."""

    loss: int
    leak: int
    beyond: int
    limit_loss: int
    limit_leak: int
    closed: bool


@dataclass(frozen=True)
class Slot:
    """The content of a slot: an entry, the place of its database, and totals after the entry.

    Totals are there for as many data sets as fit; a restored backup is charged by them.
    """

    head: Head
    place: str
    totals: dict[str, Totals]

    @cached_property  # it is written to two files
    def text(self) -> bytes:
        """The content as JSON, with as many totals as fit."""
        start = (
            f'{{"number": {self.head.number}, "seal": "{self.head.seal}", '
            f'"place": {_quoted(self.place)}, "totals": {{'
        ).encode()
        room = SLOT_BYTES - 100 - len(start)
        if room < 0:
            raise InvalidInput(
                f"{self.place[:60]}...: the path of the database is too long; shorten it"
            )
        parts = []
        for name, (*amounts, closed) in self.totals.items():
            ends = "true" if closed else "false"
            part = f"{_quoted(name)}: [{', '.join(map(str, amounts))}, {ends}]"
            room -= len(part) + 2
            if room < 0:
                break
            parts.append(part)
        return start + ", ".join(parts).encode() + b"}}"


class SlotFile:
    """A file of slots, kept open. One thread at a time may hold its lock; any thread may read.

    Guarantees:
        `read` returns only complete slots that were written with the key; a slot that is being
        written, or was torn by a power cut, reads as None.
    """

    def __init__(self, path: Path, key: bytes, create: bool = False) -> None:
        self.path, self._key, self._create = path, key, create
        self._file, self._process = -1, 0
        # The last bytes of each slot, and what was parsed from them.
        self._known: dict[int, tuple[bytes, Slot | None]] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, after waiting for other processes and other objects of this class."""
        if _LOCK_OWNER_THREADS.get(self.path) == threading.get_ident():
            raise InvalidInput(
                f"{self.path}: this thread holds the ledger already; "
                "end that transaction before starting another"
            )
        file, process = self._descriptor(), os.getpid()
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                raise LedgerUnavailable(
                    f"{self.path}: cannot be locked ({error}); nothing was answered"
                ) from error
            _LOCK_OWNER_THREADS[self.path] = threading.get_ident()
            yield
        finally:
            # A child forked in the meantime shares the lock, and must leave it to the parent.
            if process == os.getpid():
                _LOCK_OWNER_THREADS.pop(self.path, None)
                fcntl.flock(file, fcntl.LOCK_UN)

    def read(self, slot: int) -> Slot | None:
        """Return what a slot holds; None if it is empty, damaged or written with another key."""
        try:
            content = os.pread(self._descriptor(), SLOT_BYTES, slot * SLOT_BYTES)
        except OSError as error:
            raise LedgerUnavailable(
                f"{self.path}: cannot be read ({error}); nothing was answered"
            ) from error
        known, parsed = self._known.get(slot, (b"", None))
        if content != known:
            parsed = self._parsed(content)
            self._known[slot] = (content, parsed)
        return parsed

    def write(self, slot: int, content: Slot, flush: bool = False) -> None:
        """Write a slot; with `flush`, wait until it is on disk."""
        sealed = sealed_slot(self._key, content)
        try:
            if os.pwrite(self._descriptor(), sealed, slot * SLOT_BYTES) != SLOT_BYTES:
                raise OSError("only a part was written")
            if flush:
                os.fsync(self._file)
        except OSError as error:
            raise LedgerUnavailable(
                f"{self.path}: cannot be written ({error}); nothing was answered; ask again"
            ) from error
        self._known[slot] = (sealed, content)

    def close(self) -> None:
        """Close the file.

        In a forked child, this leaves the parent's lock in place; the child no longer shares it.
        """
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):
            self.close()

    def _descriptor(self) -> int:
        """Return the descriptor of the open file.

        The file is opened again if it was deleted or replaced, and in a forked child, which needs
        locks of its own.
        """
        if self._file >= 0 and self._process == os.getpid() and os.fstat(self._file).st_nlink:
            return self._file
        self.close()
        try:
            self._file = os.open(
                self.path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if self._create else 0), 0o600
            )
        except FileNotFoundError:
            raise TamperedLedger(
                f"{self.path}: the ledger's head, kept outside the database, is gone; "
                "restore it from a copy"
            ) from None
        except OSError as error:
            raise LedgerUnavailable(
                f"{self.path}: cannot be opened ({error}); nothing was answered"
            ) from error
        self._process = os.getpid()
        return self._file

    def _parsed(self, content: bytes) -> Slot | None:
        about = parse_slot(content)
        if about is None or not hmac.compare_digest(
            _slot_hash(self._key, about["text"]), about["mark"]
        ):
            return None
        totals = {name: Totals(*each) for name, each in about["totals"].items()}
        return Slot(Head(about["number"], about["seal"]), about["place"], totals)


def sealed_slot(key: bytes, slot: Slot) -> bytes:
    """Return the bytes of a sealed slot."""
    return (_slot_hash(key, slot.text) + b" " + slot.text + b"\n").ljust(SLOT_BYTES, b"\0")


@lru_cache(maxsize=64)
def _quoted(text: str) -> str:
    return json.dumps(text)


def parse_slot(content: bytes) -> dict[str, Any] | None:
    """Return the fields of a slot, without checking its keyed hash; None if it is not readable."""
    mark, _, text = content.partition(b"\n")[0].partition(b" ")
    try:
        about = json.loads(text)
        found = {name: about[name] for name in ("number", "seal", "place")}
        return {**found, "totals": about.get("totals", {}), "text": text, "mark": mark}
    except (ValueError, TypeError, KeyError):
        return None


def _slot_hash(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256").hex().encode()


_HEAD_FLUSH_SECONDS = 1.0
_IDENTITY = re.compile("[0-9a-f]{16}")


def default_home() -> Path:
    """Return the folder of keys and heads: HOLDFAST_HOME, or .holdfast in the user's home."""
    return Path(os.environ.get("HOLDFAST_HOME") or Path.home() / ".holdfast")


class KeyStore:
    """The key and head of one ledger, in the files IDENTITY.key and IDENTITY.head of a folder.

    Writers wait for the lock of a third file, IDENTITY.queue, and announce there what they have
    committed: its slot names an entry that may not be on disk yet.
    """

    def __init__(self, home: Path, identity: str) -> None:
        if not _IDENTITY.fullmatch(identity):
            raise TamperedLedger(
                f"the database has the identity {identity!r}: expected 16 hexadecimal digits; "
                "restore it from a copy"
            )
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
        """Create the key and head files of a new ledger."""
        key = secrets.token_bytes(32)
        try:
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write_atomically(home / f"{identity}.key", key.hex().encode())
            first = sealed_slot(key, Slot(Head(), place, {}))
            _write_atomically(home / f"{identity}.head", first + b"\0" * SLOT_BYTES)
            fsync_folder(home)
        except OSError as error:
            raise _unwritable_home(home, error) from error

    def head(self) -> Slot:
        """Return the head, and the location of the database that was the last to advance it.

        Guarantees:
            All entries up to the head are on disk, and no answer was returned for a later entry.
        """
        latest = _latest(self._head)
        if latest is None:  # another process is writing it, or it is damaged
            again = SlotFile(self._head.path, self.key)
            with again.locked():
                latest = _latest(again) or _raise_damaged(again)
        return latest[1]

    def advance_head(
        self,
        ahead: Slot,
        flush: Callable[[], None] | None,
        is_entry: Callable[[Head], bool],
    ) -> Head:
        """Advance the head to `ahead` or beyond, once all entries up to there are on disk.

        The first process also settles what others have announced in the meantime, so that they need
        no flush of their own.

        Args:
            ahead: The last entry that must be on disk, with the place of the database and the
                totals after the entry.
            flush: Waits until all commits are on disk; None if the entry is on disk already.
            is_entry: Returns whether a head is an entry of the database that holds `ahead`.

        Returns:
            The current head, which may be later than `ahead`.

        Raises:
            CopiedLedger: If the head is an entry of another copy of the database.
            LedgerUnavailable: If the entries or the head cannot be written to disk.

        Guarantees:
            The heads that are ever written are entries of a single chain, even if several copies of
            one database are in use: under the lock, both the head that is found and the head that
            is written are entries of the same database.
        """
        with self._head.locked():
            slot, found = _latest(self._head) or _raise_damaged(self._head)
            if not is_entry(found.head):
                raise copied_ledger(ahead.place, found)
            if found.head.number >= ahead.head.number:
                return found.head
            ahead = ahead if flush is None else self._flush_log(ahead, flush, is_entry)
            due = time.monotonic() - self._synced > _HEAD_FLUSH_SECONDS
            self._head.write(1 - slot, ahead, flush=due)
            self._synced = time.monotonic() if due else self._synced
            return ahead.head

    def replace_head(self, expected: Slot, ahead: Slot) -> None:
        """Write the head of a restored ledger, on disk, in the place of the one that is expected.

        Raises:
            CopiedLedger: If the ledger has gone on since `expected` was read.
        """
        with self._head.locked():
            slot, found = _latest(self._head) or _raise_damaged(self._head)
            if found.head != expected.head:
                raise CopiedLedger(
                    f"{ahead.place}: the ledger at {found.place} has gone on while it was restored "
                    "here. Stop everything that uses it, remove this database, and restore again"
                )
            self._head.write(1 - slot, ahead, flush=True)

    def recorded_datasets(self) -> list[str]:
        """Return the data sets that the ledger had a budget for when they were last recorded."""
        try:
            return list(json.loads(self._names_path.read_text())["datasets"])
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LedgerUnavailable(
                f"{self._names_path}: a ledger's list of data sets cannot be read ({error}); "
                "repair or remove it"
            ) from error

    @property
    def flush_failed(self) -> bool:
        """Whether a flush of the database's log failed in any process, with no recovery since."""
        return self._failure_path.exists()

    def note_failed_flush(self) -> None:
        """Record for all processes that the log cannot be trusted.

        The record is needed because the kernel reports a lost page only once.
        """
        try:
            self._failure_path.touch(mode=0o600)
        except OSError as error:
            raise LedgerUnavailable(
                f"{self._failure_path}: cannot be written ({error}); nothing was answered"
            ) from error

    def forget_failed_flush(self) -> None:
        """Trust the log again, after its content was written and flushed to the database file."""
        try:
            self._failure_path.unlink(missing_ok=True)
        except OSError as error:
            raise LedgerUnavailable(
                f"{self._failure_path}: cannot be removed ({error}); nothing was answered"
            ) from error

    def close(self) -> None:
        """Close the files."""
        self._head.close()
        self.queue.close()

    def _flush_log(
        self, ahead: Slot, flush: Callable[[], None], is_entry: Callable[[Head], bool]
    ) -> Slot:
        """Flush, and return the later of `ahead` and what was announced before the flush.

        What was announced is passed over if it is no entry of this database: a power cut may have
        lost it, or a copy of the database may have announced it.

        Guarantees:
            All entries up to the returned head are on disk.
        """
        announced = self.queue.read(0)
        later = (
            announced is not None
            and announced.head.number > ahead.head.number
            and is_entry(announced.head)
        )
        try:
            flush()
        except LedgerUnavailable:
            self.note_failed_flush()
            raise
        if self.flush_failed:  # in another process: the kernel may have reported it only there
            raise LedgerUnavailable(
                "the database's log could not be flushed to the disk; nothing was answered; "
                "ask again"
            )
        return announced if announced is not None and later else ahead

    def record_datasets(self, names: Iterable[str], place: str) -> None:
        """Record which data sets have a budget in this ledger, for other ledgers of this home."""
        current = sorted(names)
        if self._remembered == current:
            return
        # If a crash loses the file, the next process that opens the ledger writes it again.
        try:
            _write_atomically(
                self._names_path, json.dumps({"place": place, "datasets": current}).encode()
            )
        except OSError as error:
            raise LedgerUnavailable(
                f"{self._names_path}: cannot be written ({error}); nothing was answered"
            ) from error
        self._remembered = current

    def _read_key(self) -> bytes:
        try:
            key = bytes.fromhex(self._key_path.read_text().strip())
        except FileNotFoundError:
            raise TamperedLedger(
                f"{self._key_path}: the key of this ledger is not here; copy it here, or set "
                "HOLDFAST_HOME to the folder that holds it"
            ) from None
        except OSError as error:
            raise LedgerUnavailable(
                f"{self._key_path}: the key of this ledger cannot be read ({error.strerror}); "
                "nothing was answered. Make it yours and readable (chown, chmod 600), run as the "
                "user who owns it, or set HOLDFAST_HOME to the folder that holds it"
            ) from error
        except ValueError as error:
            raise TamperedLedger(
                f"{self._key_path}: not a key ({error}); restore it from a copy"
            ) from error
        if len(key) != 32:
            raise TamperedLedger(
                f"{self._key_path}: expected a key of 32 bytes, found {len(key)}; "
                "restore it from a copy"
            )
        return key


def _latest(file: SlotFile) -> tuple[int, Slot] | None:
    """Return which slot has the latest head, and its content; None if neither slot is intact."""
    intact = [(slot, content) for slot in (0, 1) if (content := file.read(slot)) is not None]
    return max(intact, key=lambda one: one[1].head.number, default=None)


def copied_ledger(place: str, outside: Slot) -> CopiedLedger:
    """Return the error for a database that does not hold the head outside it.

    Args:
        place: The location of this database.
        outside: The head.
    """
    number = outside.head.number
    if outside.place == place:
        return CopiedLedger(
            f"{place}: entry {number}, for which an answer was given, is not in this database: it "
            "was replaced by another copy of itself; nothing was answered; restore the latest copy"
        )
    return CopiedLedger(
        f"{place}: this is a copy of the ledger at {outside.place}, which has gone on: entry "
        f"{number} was written there and is not here. Nothing was answered. Use the ledger at "
        f"{outside.place} instead of this copy: both would spend the budget twice. If it is gone, "
        "restore its latest copy, with its log"
    )


def _raise_damaged(file: SlotFile) -> NoReturn:
    raise TamperedLedger(
        f"{file.path}: damaged, or written with another key; restore it from a copy"
    )


def fsync_folder(folder: Path) -> None:
    """Flush a folder to disk, so that the names of its files survive a power cut."""
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def keyed_hash(key: bytes, *parts: bytes) -> bytes:
    """Return a keyed hash of the parts, which are delimited by their lengths.

    Guarantees:
        The input of the hash is never that of a seal of an entry or a head: it has its own prefix.
    """
    sizes = b"".join(len(part).to_bytes(8, "big") for part in parts)
    return hmac.digest(key, b"".join([b"holdfast hash", sizes, *parts]), "sha256")


def other_ledgers_with(home: Path, name: str, identity: str | None) -> list[str]:
    """Return the locations of this home's other ledgers that have a budget for a data set.

    The ledger with `identity` is left out.
    """
    places = []
    for path in sorted(home.glob("*.datasets")):
        try:
            about = json.loads(path.read_text())
            names = {canonical_name(each) for each in about["datasets"]}
            if canonical_name(name) in names and path.stem != identity:
                places.append(str(about["place"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LedgerUnavailable(
                f"{path}: a ledger's list of data sets cannot be read ({error}); "
                "repair or remove it"
            ) from error
    return places


def known_places(home: Path) -> str:
    """Return where this home's ledgers are, for an error about a wrong place; "" if there is none.

    Files that cannot be read are left out: the error is about something else.
    """
    places = []
    for path in sorted(home.glob("*.datasets")):
        try:
            places.append(str(json.loads(path.read_text())["place"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return f" (there are ledgers at {', '.join(places)}: give that address)" if places else ""


@contextmanager
def locked_home(home: Path) -> Iterator[None]:
    """Let one process at a time grant budgets, so that new ledgers notice each other."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(home / "grants.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable_home(home, error) from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise _unwritable_home(home, error) from error
        yield
    finally:
        os.close(file)


def _unwritable_home(home: Path, error: OSError) -> LedgerUnavailable:
    return LedgerUnavailable(
        f"{home}: the ledger's key cannot be stored here ({error}); "
        "set HOLDFAST_HOME to a writable folder"
    )


def find_head_file(home: Path, place: str) -> Path | None:
    """Return the head file of a ledger with entries that was last seen at `place`, or None."""
    for path in sorted(home.glob("*.head")):
        try:
            with path.open("rb") as file:
                slots = [parse_slot(file.read(SLOT_BYTES)) for _ in range(2)]
        except OSError as error:
            raise LedgerUnavailable(
                f"{path}: a ledger's head cannot be read ({error}); nothing was answered"
            ) from error
        abouts = [about for about in slots if about is not None]
        if not abouts:  # it may belong to the ledger that was here
            raise TamperedLedger(
                f"{path}: damaged; "
                "restore it from a copy, or remove it if it is not a ledger's head"
            )
        latest = max(abouts, key=lambda about: about["number"])
        if latest["number"] > 0 and latest["place"] == place:
            return path
    return None


def _write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically, readable only by its owner."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if os.write(file, content) != len(content):
                raise OSError("only a part was written")
            os.fsync(file)
        finally:
            os.close(file)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
