"""Planning: the expected accuracy of private answers, with DP-SGD for comparison.

Results that are computed from private records are for the owner: they are NOT private.
"""

from .dpsgd import DpSgdSettings, rehearse_dpsgd, student_accuracy, train_dpsgd
from .plan import distance_needed, plan
from .simulation import Outcome, Outcomes, largest_queries, mechanisms_to_compare

__all__ = [
    "DpSgdSettings",
    "Outcome",
    "Outcomes",
    "distance_needed",
    "largest_queries",
    "mechanisms_to_compare",
    "plan",
    "rehearse_dpsgd",
    "student_accuracy",
    "train_dpsgd",
]
