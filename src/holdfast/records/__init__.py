"""Records: private data sets, their ids and owners, and the one preparation for training."""

from .dataset import Columns, Dataset, dataset_and_recipe
from .ids import HashKFold, assign_parts, content_ids, given_ids
from .prepare import Block, Prepared, Rows, Split, normaliser, prepare, refuse_empty
from .store import PARTS_MEMORY, MemoryRows, RowStore, Spool, part_rows

__all__ = [
    "PARTS_MEMORY",
    "Block",
    "Columns",
    "Dataset",
    "HashKFold",
    "MemoryRows",
    "Prepared",
    "RowStore",
    "Rows",
    "Split",
    "Spool",
    "assign_parts",
    "content_ids",
    "dataset_and_recipe",
    "given_ids",
    "normaliser",
    "part_rows",
    "prepare",
    "refuse_empty",
]
