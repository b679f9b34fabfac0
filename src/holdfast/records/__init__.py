"""Records: checked private data, and hash-based assignment to batches, members and folds."""

from .folds import HashKFold
from .ids import assign_parts, content_ids, given_ids, hash_codes
from .parquet import Chunk, ParquetRecords
from .persons import NO_OWNER, Persons, owner_codes, relation_for
from .records import Block, Records, Source
from .spool import PARTS_MEMORY, Spool, part_rows

__all__ = [
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
    "assign_parts",
    "content_ids",
    "given_ids",
    "hash_codes",
    "owner_codes",
    "part_rows",
    "relation_for",
]
