"""Mechanisms that turn certificates into private labels, with exact tables and exact sampling."""

from .argmax import NoisyArgmax
from .mechanism import AnswerMechanism, Mechanism
from .responses import BudgetedResponse, CauchyResponse, LaplaceResponse, StableResponse
from .sparse_vector import UNSTABLE, SparseVector, SparseVectorSession
from .table import SeededEntropyForTests, Table

__all__ = [
    "UNSTABLE",
    "AnswerMechanism",
    "BudgetedResponse",
    "CauchyResponse",
    "LaplaceResponse",
    "Mechanism",
    "NoisyArgmax",
    "SeededEntropyForTests",
    "SparseVector",
    "SparseVectorSession",
    "StableResponse",
    "Table",
]
