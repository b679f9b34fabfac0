"""Planning: what private answers would be worth, in closed form, beside DP-SGD as a rival. For the owner: NOT private."""

from .dpsgd import DpSgd, rehearse_dpsgd, student_accuracy, train_dpsgd
from .plan import distance_needed, plan
from .simulation import Outcome, Outcomes, contenders, largest_queries

__all__ = [
    "DpSgd",
    "Outcome",
    "Outcomes",
    "contenders",
    "distance_needed",
    "largest_queries",
    "plan",
    "rehearse_dpsgd",
    "student_accuracy",
    "train_dpsgd",
]
