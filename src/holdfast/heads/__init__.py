"""Convex linear heads: training whose reachable weights are a small ball, in closed form."""

from .ball import Ball
from .linear_recipe import LinearRecipe

__all__ = ["Ball", "LinearRecipe"]
