"""From certificates to private labels: exact tables, exact sampling."""

from .argmax import NoisyArgmax
from .budgeted import BudgetedResponse
from .mechanism import Mechanism
from .responses import CauchyResponse, LaplaceResponse, StableResponse
from .sparse_vector import UNSTABLE, SparseVector
from .table import SeededEntropyForTests, Table

__all__ = [
    "UNSTABLE",
    "BudgetedResponse",
    "CauchyResponse",
    "LaplaceResponse",
    "Mechanism",
    "NoisyArgmax",
    "SeededEntropyForTests",
    "SparseVector",
    "StableResponse",
    "Table",
]
