"""Loaders of the paper's data sets, from a folder or by download."""

from .imdb import imdb
from .large import amex, large_table
from .octmnist import octmnist, octmnist_by_patient

__all__ = ["amex", "imdb", "large_table", "octmnist", "octmnist_by_patient"]
