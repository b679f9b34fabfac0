"""Serving: private answers from a certificate, a mechanism and a ledger."""

from .predictor import Answer, Preview, PrivatePredictor

__all__ = ["Answer", "Preview", "PrivatePredictor"]
