"""Records: checked private data, and hash-based assignment to batches, members and folds."""

from .records import (
    NEGLIGIBLE,
    Block,
    HashKFold,
    Records,
    Source,
    as_batch,
    as_features,
    assign_parts,
    check_features,
    check_labels,
    content_ids,
    given_ids,
    hash_codes,
)
from .tables import column, read_table

__all__ = [
    "NEGLIGIBLE",
    "Block",
    "HashKFold",
    "Records",
    "Source",
    "as_batch",
    "as_features",
    "assign_parts",
    "check_features",
    "check_labels",
    "column",
    "content_ids",
    "given_ids",
    "hash_codes",
    "read_table",
]
