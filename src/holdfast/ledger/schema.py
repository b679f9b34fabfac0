"""The tables of the ledger, and their versions. A change of these needs a new file in migrations/versions."""

from __future__ import annotations

import threading

import sqlalchemy as sa

from ..errors import LedgerUnavailable
from .entries import COLUMNS

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
