"""Serving: private answers from a certificate, a mechanism and a ledger.

The scikit-learn estimator is in `serving.estimator`, so that a service does not import
scikit-learn.
"""

from .predictor import Answer, PredictionRequest, Preview, PrivatePredictor
from .statement import model_card, privacy_statement, statement_facts

__all__ = [
    "Answer",
    "PredictionRequest",
    "Preview",
    "PrivatePredictor",
    "model_card",
    "privacy_statement",
    "statement_facts",
]
