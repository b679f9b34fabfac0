"""The first tables of the ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table("holdfast_ledger", sa.Column("identity", sa.String, primary_key=True))
    op.create_table(
        "holdfast_entries",
        sa.Column(
            "number",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("time", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("dataset", sa.String, nullable=False),
        sa.Column("analyst", sa.String, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("question", sa.String, nullable=False),
        sa.Column("label", sa.BigInteger),
        sa.Column("loss", sa.String, nullable=False),
        sa.Column("leak", sa.String, nullable=False),
        sa.Column("about", sa.String, nullable=False),
        sa.Column("seal", sa.String, nullable=False),
    )
