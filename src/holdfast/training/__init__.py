"""Certified training: from records to one box of parameters per distance."""

from .bounds import ParameterBounds
from .recipe import Recipe

__all__ = ["ParameterBounds", "Recipe"]
