"""Add entries for releases of heads, and budgets that are planned for one.

The tables stay as they are. The version changes so that older versions of holdfast, which cannot
read such entries, no longer use the ledger.
"""

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Change nothing but the version."""
