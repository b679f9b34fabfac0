"""Data sets of the experiments."""

from .blobs import Blobs, blobs

__all__ = ["Blobs", "blobs"]
