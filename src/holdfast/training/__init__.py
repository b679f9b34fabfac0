"""Certified training: from records to one box of parameters per distance."""

from .bounds import ParameterBounds
from .diagnosis import Diagnosis, Estimate
from .recipe import Recipe

__all__ = ["Diagnosis", "Estimate", "ParameterBounds", "Recipe"]
