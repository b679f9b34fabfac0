"""Data sets of the experiments, all in one shape: Task."""

from .blobs import blobs
from .imdb import imdb
from .large import amex, large_table
from .octmnist import octmnist
from .task import Task

__all__ = ["Task", "amex", "blobs", "imdb", "large_table", "octmnist"]
