"""Privacy accounting: budgets, guarantees and composition, independent of the mechanisms."""

from .budget import ApproximateGuarantee, Budget, Guarantee, RenyiGuarantee
from .composition import per_query_epsilon, total_epsilon

__all__ = [
    "ApproximateGuarantee",
    "Budget",
    "Guarantee",
    "RenyiGuarantee",
    "per_query_epsilon",
    "total_epsilon",
]
