"""The paper's data sets: loaders that take a folder, or download by the usual package."""

from .imdb import imdb
from .large import amex, large_table
from .octmnist import octmnist

__all__ = ["amex", "imdb", "large_table", "octmnist"]
