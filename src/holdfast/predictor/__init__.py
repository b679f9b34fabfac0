"""Private answers: certificate, mechanism and ledger together."""

from .predictor import Answer, Preview, PrivatePredictor

__all__ = ["Answer", "Preview", "PrivatePredictor"]
