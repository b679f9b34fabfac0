"""Planning: the expected accuracy of private answers, in closed form, and DP-SGD as a baseline.

Everything that is computed from certificates is NOT private: it is for the owner.
"""

from .outcomes import (
    Outcome,
    Outcomes,
    distance_needed,
    largest_queries,
    mechanisms_to_compare,
    needed_distances,
)
from .planner import Plan, PlanCell, plan
from .simulation import MEASURES, Simulation, simulate
from .ways import DpSgdSettings, rehearse_dpsgd, student_accuracy, train_dpsgd

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
