"""Certificates: how far a query's label is stable."""

from .certificate import Certificate
from .stable_distance import certify, certify_one, combine, count_votes, paper_distance, winners

__all__ = ["Certificate", "certify", "certify_one", "combine", "count_votes", "paper_distance", "winners"]
