"""Alembic's environment: run migrations on the ledger's connection, in its transaction."""

from alembic import context

from holdfast.ledger.entries import METADATA, VERSION_TABLE

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=METADATA, version_table=VERSION_TABLE)
context.run_migrations()
