"""Records: where private data enters, and how each record finds its batch, its member and its fold."""

from .records import NEGLIGIBLE, Block, Records, Source, as_features, assign, check_features, check_labels, content_ids, given_ids

__all__ = [
    "NEGLIGIBLE",
    "Block",
    "Records",
    "Source",
    "as_features",
    "assign",
    "check_features",
    "check_labels",
    "content_ids",
    "given_ids",
]
