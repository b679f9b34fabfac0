"""Preprocessing: public rules that turn tables and features into what a model sees."""

from .reading import read_csv_bytes, read_labels, read_records
from .rules import Preprocessing

__all__ = ["Preprocessing", "read_csv_bytes", "read_labels", "read_records"]
