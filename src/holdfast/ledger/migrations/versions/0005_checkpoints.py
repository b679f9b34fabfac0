"""Add checkpoints, and the pages that they are made of.

Entries stay as they are. The version changes because older versions of holdfast cannot read entries
that follow a restored backup.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "holdfast_pages",
        sa.Column("page", number, primary_key=True, autoincrement=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "holdfast_checkpoints",
        sa.Column("number", number, primary_key=True, autoincrement=False),
        sa.Column("nonce", sa.String, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("seal", sa.String, nullable=False),
    )
