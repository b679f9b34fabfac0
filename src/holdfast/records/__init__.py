"""Records: checked private data, and hash-based assignment to batches, members and folds."""

from .records import NEGLIGIBLE, Block, Records, Source, as_features, assign_parts, check_features, check_labels, content_ids, given_ids

__all__ = [
    "NEGLIGIBLE",
    "Block",
    "Records",
    "Source",
    "as_features",
    "assign_parts",
    "check_features",
    "check_labels",
    "content_ids",
    "given_ids",
]
