"""Interval arithmetic whose executed floating-point operations are isotonic (docs/theory/floating-point.md)."""

from .interval import Interval, Kind, largest_parameter, mean_width, product

__all__ = ["Interval", "Kind", "largest_parameter", "mean_width", "product"]
