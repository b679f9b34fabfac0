"""Planning: the expected accuracy of private answers, in closed form, and DP-SGD as a baseline.

Everything that is computed from certificates is NOT private: it is for the owner.
"""

from .comparison import Plan, PlanCell
from .distances import distance_needed, needed_distances
from .dpsgd import DpSgdSettings, rehearse_dpsgd, student_accuracy, train_dpsgd
from .outcomes import Outcome, Outcomes, largest_queries, mechanisms_to_compare
from .planner import plan
from .simulation import MEASURES, Simulation, simulate

__all__ = [
    "MEASURES",
    "DpSgdSettings",
    "Outcome",
    "Outcomes",
    "Plan",
    "PlanCell",
    "Simulation",
    "distance_needed",
    "largest_queries",
    "mechanisms_to_compare",
    "needed_distances",
    "plan",
    "rehearse_dpsgd",
    "simulate",
    "student_accuracy",
    "train_dpsgd",
]
