"""Serving: certificate, mechanism and ledger together give private answers."""

from .predictor import Answer, Preview, PrivatePredictor

__all__ = ["Answer", "Preview", "PrivatePredictor"]
