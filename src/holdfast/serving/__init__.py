"""Serving: private answers from a certificate, a mechanism and a ledger.

The scikit-learn estimator is in `serving.estimator`, so that a service does not import
scikit-learn.
"""

from .answers import Answer, Preview
from .card import model_card
from .predictor import PrivatePredictor
from .release import release_head
from .requests import PredictionRequest
from .statement import privacy_statement
from .statement_facts import statement_facts

__all__ = [
    "Answer",
    "PredictionRequest",
    "Preview",
    "PrivatePredictor",
    "model_card",
    "privacy_statement",
    "release_head",
    "statement_facts",
]
