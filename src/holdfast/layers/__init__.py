"""Layers: the forward and backward interval rules of each operation, side by side."""

from .base import Box, Gradient, Layer
from .front import Front
from .initial import make_model, zero_output
from .network import ForwardPass, Network, Outputs
from .registry import LAYERS

__all__ = [
    "LAYERS",
    "Box",
    "ForwardPass",
    "Front",
    "Gradient",
    "Layer",
    "Network",
    "Outputs",
    "make_model",
    "zero_output",
]
