"""Run by alembic: migrations go over the connection that the ledger holds, in its transaction."""

from alembic import context

from holdfast.ledger.entries import METADATA, VERSION_TABLE

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=METADATA, version_table=VERSION_TABLE)
context.run_migrations()
