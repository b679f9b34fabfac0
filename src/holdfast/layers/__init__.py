"""Layers: the forward and backward interval rules of each operation, side by side."""

from .base import Box, Gradient, Layer
from .front import Front
from .network import Forward, Network, Outputs
from .registry import LAYERS

__all__ = ["LAYERS", "Box", "Forward", "Front", "Gradient", "Layer", "Network", "Outputs"]
