"""Identify questions and models by the random id of a training run, not by a hash of the model.

The tables stay as they are, and entries are sealed, so none is rewritten. Answers that were
recorded under version 0001 are no longer found: asking again is charged again, which is safe. The
version changes so that older versions of holdfast, whose costs revealed whether the private records
had changed, can no longer use the ledger.
"""

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Change nothing but the version."""
