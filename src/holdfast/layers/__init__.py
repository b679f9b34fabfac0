"""Layers: for each operation its forward and its backward interval rule, side by side."""

from .base import Box, Gradient, Layer
from .network import Network, Outputs
from .prefix import plainly
from .table import LAYERS

__all__ = ["LAYERS", "Box", "Gradient", "Layer", "Network", "Outputs", "plainly"]
