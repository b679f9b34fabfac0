"""Rivals: DP-SGD, which trains a private model once, and students that learn from private labels."""

from .dpsgd import DpSgd, rehearse_dpsgd, train_dpsgd
from .student import student_accuracy

__all__ = ["DpSgd", "rehearse_dpsgd", "student_accuracy", "train_dpsgd"]
