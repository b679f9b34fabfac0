"""Questions and models are known by the random id of a training run, no longer by a hash of the private model.

The tables stay as they are, and entries are sealed, so none is rewritten. Answers that were recorded under version 0001
are no longer found: asking again is charged again, which is safe. The version changes so that a holdfast of before, whose
costs told whether the private records had changed, cannot use the ledger any more.
"""

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Change nothing but the version."""
