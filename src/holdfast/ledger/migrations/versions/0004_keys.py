"""Add entries for access keys and for closed budgets, and reasons and request tags in entries.

The tables stay as they are. The version changes so that older versions of holdfast, which would
answer from a closed budget, no longer use the ledger.
"""

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Change nothing but the version."""
