"""Entries: the lines of the ledger, and the database tables that hold them.

Each entry is sealed with the owner's key together with the seal of the entry before it. A change of the
tables needs a new file in migrations/versions.
"""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Iterable
from typing import NamedTuple

import sqlalchemy as sa

from ..errors import LedgerUnavailable, TamperedLedger

GENESIS = ""
"""In place of a seal, before the first entry."""

GRANT, SHARE, SESSION, ANSWER = "grant", "share", "session", "answer"


class Entry(NamedTuple):
    """One line, as it is stored. Raw features, distances and true labels are never in it."""

    number: int  # 1, 2, 3, ...
    time: str
    kind: str
    dataset: str
    analyst: str = ""
    model: str = ""  # keyed hash
    question: str = ""  # keyed hash of the features, the model and the mechanism
    label: int | None = None  # the answer that was drawn; in the database it is masked
    loss: str = "0"  # digits: a whole number of units of the budget's meter
    leak: str = "0"
    about: str = ""  # JSON: the terms of a grant, a share, a session, the nonce of a masked label
    seal: str = ""

    def sealed(self, key: bytes, before: str) -> str:
        """The seal that belongs to this line after the line sealed with `before`."""
        text = _ENCODER.encode((before, self[:-1]))
        return hmac.digest(key, text.encode(), "sha256").hex()


def masked(entry: Entry, key: bytes) -> Entry:
    """Return an entry as it is stored: whoever keeps the database sees answers before they are charged, and must not read them.

    Guarantees:
        Without the key, and as long as no nonce comes twice with one number, what is stored of a label is a
        uniformly random number, in every attempt to store it.
    """
    return entry if entry.label is None else entry._replace(label=(entry.label + 1) ^ _pad(entry, key))


def unmasked(entry: Entry, key: bytes) -> Entry:
    """Return a stored entry with its label. What is not a masked entry stays as it is, and is judged by its seal."""
    try:
        return entry if entry.label is None else entry._replace(label=(entry.label ^ _pad(entry, key)) - 1)
    except (KeyError, TypeError, ValueError):
        return entry  # of a version that stored labels as they were, or not of ours


def _pad(entry: Entry, key: bytes) -> int:
    """Return 62 bits that follow from the key, the nonce and the entry's place."""
    text = _ENCODER.encode(("label", json.loads(entry.about)["nonce"], entry.number, entry.question))
    return int.from_bytes(hmac.digest(key, text.encode(), "sha256")[:8]) >> 2


COLUMNS = Entry._fields
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class Head(NamedTuple):
    """Where a ledger ends: its last entry's number and seal."""

    number: int = 0
    seal: str = GENESIS


def _fits(entry: Entry, key: bytes, before: Head) -> bool:
    try:
        return hmac.compare_digest(entry.sealed(key, before.seal).encode(), str(entry.seal).encode())
    except (TypeError, ValueError):
        return False  # of a type that is never written


def follow(head: Head, entries: Iterable[Entry], key: bytes) -> Head:
    """The head after the entries; raises TamperedLedger at the first that is not what was written after the one before it."""
    for entry in entries:
        if entry.number != head.number + 1:
            raise TamperedLedger(f"entry {head.number + 1} is missing: the next one there is has number {entry.number}")
        if not _fits(entry, key, head):
            raise TamperedLedger(f"entry {entry.number} is not what was written: it, or its place, does not match its seal")
        head = Head(entry.number, entry.seal)
    return head


VERSION = "0002"
"""The version of the tables below, and of what their entries mean."""

VERSION_TABLE = "holdfast_version"
METADATA = sa.MetaData()
_MIGRATING = threading.Lock()  # alembic's context is one for all threads

IDENTITY = sa.Table("holdfast_ledger", METADATA, sa.Column("identity", sa.String, primary_key=True))
"""One row: which ledger this is, and so which key and head are its own."""

ENTRIES = sa.Table(
    "holdfast_entries",
    METADATA,
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
    *(sa.Column(name, sa.String, nullable=False) for name in ("time", "kind", "dataset", "analyst", "model", "question")),
    sa.Column("label", sa.BigInteger),
    *(sa.Column(name, sa.String, nullable=False) for name in ("loss", "leak")),  # digits: units of epsilon outgrow 64 bits
    *(sa.Column(name, sa.String, nullable=False) for name in ("about", "seal")),
)
assert tuple(ENTRIES.columns.keys()) == COLUMNS


def migrate(connection: sa.Connection) -> None:
    """Bring the tables of an older version, or none, to this one, within the connection's transaction."""
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", "holdfast:ledger/migrations")
    config.attributes["connection"] = connection
    try:
        with _MIGRATING:
            command.upgrade(config, "head")
    except CommandError as error:
        raise LedgerUnavailable(f"the tables cannot be brought to version {VERSION} ({error})") from error


def version(connection: sa.Connection) -> str | None:
    """The version of the tables that are there; None where there are none."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one_or_none()
    return None if found is None else str(found)
