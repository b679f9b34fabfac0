"""Records: checked private data, and hash-based assignment to batches, members and folds."""

from .folds import HashKFold
from .ids import assign_parts, content_ids, given_ids, hash_codes
from .parquet import Chunk, ParquetRecords
from .persons import NO_OWNER, Persons, owner_codes, relation_for
from .records import (
    NEGLIGIBLE,
    Block,
    Records,
    Source,
    as_batch,
    as_features,
    check_features,
    check_labels,
    refuse_text_columns,
)
from .spool import PARTS_MEMORY, Spool, part_rows
from .tables import column, escape_formula, read_table

__all__ = [
    "NEGLIGIBLE",
    "NO_OWNER",
    "PARTS_MEMORY",
    "Block",
    "Chunk",
    "HashKFold",
    "ParquetRecords",
    "Persons",
    "Records",
    "Source",
    "Spool",
    "as_batch",
    "as_features",
    "assign_parts",
    "check_features",
    "check_labels",
    "column",
    "content_ids",
    "escape_formula",
    "given_ids",
    "hash_codes",
    "owner_codes",
    "part_rows",
    "read_table",
    "refuse_text_columns",
    "relation_for",
]
