"""Entries: the lines of the ledger, and the database tables that hold them.

Each entry is sealed with the owner's key together with the seal of the entry before it. A change of
the tables needs a new file in migrations/versions.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterable
from typing import NamedTuple

import sqlalchemy as sa

from ..errors import LedgerUnavailable, TamperedLedger

GENESIS = ""
"""Used in place of a previous seal when the first entry is sealed."""

FIRST = -(2**63)
"""Below any valid number, so that foreign entries are read too."""

PAGE = 4096
"""Entries that are read at once, and that a page of a checkpoint holds."""

GRANT, SHARE, SESSION, ANSWER = "grant", "share", "session", "answer"
RELEASE, CLOSE = "release", "close"
RESTORE = "restore"
KEY, REVOKE = "key", "revoke"


class Entry(NamedTuple):
    """One entry of the ledger. It never holds raw features, distances or true labels."""

    number: int  # 1, 2, 3, ...
    time: str
    kind: str
    dataset: str
    analyst: str = ""
    model: str = ""  # the random id of the training run
    question: str = ""  # keyed hash of the features, the model and the mechanism
    label: int | None = None  # the answer that was drawn; masked in the database
    loss: str = "0"  # decimal digits: a whole number of units of the budget's meter
    leak: str = "0"
    about: str = ""  # JSON: terms, reasons, a share, a session, a release, a key; nonces of masks
    seal: str = ""

    def compute_seal(self, key: bytes, before: str) -> str:
        """Return the seal of this entry if it follows an entry with the seal `before`."""
        text = _ENCODER.encode((before, self[:-1]))
        return hmac.digest(key, text.encode(), "sha256").hex()


def mask_answer(entry: Entry, key: bytes) -> Entry:
    """Return an entry whose label, or whose released weights, are masked, as it is stored.

    The administrator of the database sees an entry before its charge is final, and must not be able
    to read the answer.

    Guarantees:
        Without the key, and as long as no nonce is used twice with one entry number, the stored
        label or weights are uniformly random bits, in every attempt to store them.
    """
    if entry.label is None and entry.kind != RELEASE:
        return entry
    if '"nonce"' not in entry.about:  # from a version that stored plain answers
        return entry
    if entry.kind == RELEASE:
        return _flip_weights(entry, key)
    assert entry.label is not None
    return entry._replace(label=(entry.label + 1) ^ _pad_of_label(entry, key))


def unmask_answer(entry: Entry, key: bytes) -> Entry:
    """Return a stored entry with its label or its released weights unmasked.

    An entry that is not masked is returned unchanged; its seal decides whether it is valid.
    """
    try:
        if entry.kind == RELEASE:
            return _flip_weights(entry, key)
        if entry.label is None:
            return entry
        return entry._replace(label=(entry.label ^ _pad_of_label(entry, key)) - 1)
    except (KeyError, TypeError, ValueError):
        return entry  # from a version that stored plain labels, or not from holdfast


def _flip_weights(entry: Entry, key: bytes) -> Entry:
    """Return a release with its weights masked, or unmasked if they were masked."""
    about = json.loads(entry.about)
    weights = bytes.fromhex(about["weights"])
    pad = hashlib.shake_256(_pad(entry, "weights", key)).digest(len(weights))
    about["weights"] = bytes(a ^ b for a, b in zip(weights, pad, strict=True)).hex()
    return entry._replace(about=json.dumps(about))


def _pad_of_label(entry: Entry, key: bytes) -> int:
    """Return 62 bits derived from the key and the entry's nonce, number and question."""
    return int.from_bytes(_pad(entry, "label", key)[:8]) >> 2


def _pad(entry: Entry, what: str, key: bytes) -> bytes:
    text = _ENCODER.encode((what, json.loads(entry.about)["nonce"], entry.number, entry.question))
    return hmac.digest(key, text.encode(), "sha256")


COLUMNS = Entry._fields
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class Head(NamedTuple):
    """The end of a ledger: the number and seal of its last entry."""

    number: int = 0
    seal: str = GENESIS


def _seal_matches(entry: Entry, key: bytes, before: Head) -> bool:
    try:
        return hmac.compare_digest(
            entry.compute_seal(key, before.seal).encode(), str(entry.seal).encode()
        )
    except (TypeError, ValueError):
        return False  # a value of a type that is never written


def follows_gap(entry: Entry, number: int) -> bool:
    """Return whether an entry says that it follows entry `number`, though numbers are missing.

    Only a restored backup has such an entry: the entries between were lost, and are charged by it.
    """
    if entry.kind != RESTORE or entry.number <= number:
        return False
    try:
        return bool(json.loads(entry.about)["entries"] == number)
    except (ValueError, KeyError, TypeError):
        return False


def verify_chain(head: Head, entries: Iterable[Entry], key: bytes) -> Head:
    """Return the head after the entries.

    Raises:
        TamperedLedger: At the first entry that is missing or does not match its seal.
    """
    for entry in entries:
        if entry.number != head.number + 1 and not follows_gap(entry, head.number):
            raise TamperedLedger(
                f"entry {head.number + 1} is missing: the next entry found is {entry.number}"
            )
        if not _seal_matches(entry, key, head):
            raise TamperedLedger(
                f"entry {entry.number} is not what was written: "
                "its content or its position does not match its seal"
            )
        head = Head(entry.number, entry.seal)
    return head


VERSION = "0005"
"""The version of the tables below, and of the meaning of their entries."""

VERSION_TABLE = "holdfast_version"
METADATA = sa.MetaData()
_MIGRATING = threading.Lock()  # alembic's context is shared by all threads

IDENTITY = sa.Table("holdfast_ledger", METADATA, sa.Column("identity", sa.String, primary_key=True))
"""One row with the ledger's identity, which names its key and head files."""


def _number_column(name: str) -> sa.Column[int]:
    """Return a primary key whose values holdfast chooses."""
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


ENTRIES = sa.Table(
    "holdfast_entries",
    METADATA,
    _number_column("number"),
    *(
        sa.Column(name, sa.String, nullable=False)
        for name in ("time", "kind", "dataset", "analyst", "model", "question")
    ),
    sa.Column("label", sa.BigInteger),
    # Decimal digits, because amounts in units of epsilon exceed 64 bits.
    *(sa.Column(name, sa.String, nullable=False) for name in ("loss", "leak")),
    *(sa.Column(name, sa.String, nullable=False) for name in ("about", "seal")),
)
assert tuple(ENTRIES.columns.keys()) == COLUMNS

PAGES = sa.Table(
    "holdfast_pages",
    METADATA,
    _number_column("page"),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
"""What checkpoints keep of each entry; pages are counted from 0, and written once."""

CHECKPOINTS = sa.Table(
    "holdfast_checkpoints",
    METADATA,
    _number_column("number"),
    sa.Column("nonce", sa.String, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Column("seal", sa.String, nullable=False),
)
"""The sums of the entries up to a number, masked and sealed."""


def migrate(connection: sa.Connection) -> None:
    """Create the tables or upgrade older ones, within the connection's transaction."""
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
        raise LedgerUnavailable(
            f"the tables cannot be upgraded to version {VERSION} ({error})"
        ) from error


def version(connection: sa.Connection) -> str | None:
    """Return the version of the existing tables, or None if there are none."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(
        sa.text(f"SELECT version_num FROM {VERSION_TABLE}")
    ).scalar_one_or_none()
    return None if found is None else str(found)
