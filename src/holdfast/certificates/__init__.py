"""Certificates: how far a query's label is stable."""

from .certificate import Certificate
from .stable import certify

__all__ = ["Certificate", "certify"]
