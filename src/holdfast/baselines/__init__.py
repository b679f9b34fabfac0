"""Rivals: DP-SGD, which trains a private model once, and students that learn from private labels."""

from .dpsgd import DpSgd, train_dpsgd
from .student import student_accuracy

__all__ = ["DpSgd", "student_accuracy", "train_dpsgd"]
