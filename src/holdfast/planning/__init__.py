"""Planning: what private answers would be worth, in closed form, beside DP-SGD as a rival. For the owner: NOT private."""

from .contenders import contenders
from .dpsgd import DpSgd, rehearse_dpsgd, train_dpsgd
from .outcomes import Outcome, Outcomes, largest_queries
from .plan import distance_needed, plan
from .student import student_accuracy

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
