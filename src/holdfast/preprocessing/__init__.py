"""Preprocessing: public rules that turn tables and features into what a model sees."""

from .draft import draft_schema
from .reading import read_csv_bytes, read_labels, read_records
from .rules import Preprocessing

__all__ = ["Preprocessing", "draft_schema", "read_csv_bytes", "read_labels", "read_records"]
