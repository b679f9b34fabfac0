"""Preprocessing: public rules that turn tables and features into what a model sees."""

from .rules import Preprocessing
from .tables import draft_schema, read_csv_bytes, read_labels, read_records

__all__ = ["Preprocessing", "draft_schema", "read_csv_bytes", "read_labels", "read_records"]
