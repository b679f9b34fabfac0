"""Certificates: how far a query's label is stable."""

from .certificate import Certificate
from .ensemble import combine, count_votes, paper_distance, winners
from .stable import certify, never_overflows

__all__ = ["Certificate", "certify", "combine", "count_votes", "never_overflows", "paper_distance", "winners"]
