"""Certificates: the labels of queries and the distances up to which they are stable."""

from .certificate import Certificate
from .stable_distance import (
    certify,
    certify_one,
    certify_vote,
    count_votes,
    paper_distance,
    winners,
)

__all__ = [
    "Certificate",
    "certify",
    "certify_one",
    "certify_vote",
    "count_votes",
    "paper_distance",
    "winners",
]
