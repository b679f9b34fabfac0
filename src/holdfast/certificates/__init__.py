"""Certificates: how far a query's label is stable."""

from .certificate import Certificate
from .ensemble import combine, count_votes, paper_distance, winners
from .stable import certify, certify_one

__all__ = ["Certificate", "certify", "certify_one", "combine", "count_votes", "paper_distance", "winners"]
