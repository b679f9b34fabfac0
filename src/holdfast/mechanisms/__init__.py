"""From certificates to private labels: exact tables, exact sampling."""

from .argmax import NoisyArgmax
from .budgeted import BudgetedResponse
from .entropy import SeededEntropyForTests
from .mechanism import Mechanism
from .paper import CauchyResponse, LaplaceResponse
from .sparse_vector import UNSTABLE, SparseVector
from .stable import StableResponse
from .table import Table

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
