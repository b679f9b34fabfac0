"""Interval arithmetic that is isotonic as executed (docs/theory/floating-point.md)."""

from .interval import Interval, OperandKind, largest_parameter, mean_width, product

__all__ = ["Interval", "OperandKind", "largest_parameter", "mean_width", "product"]
