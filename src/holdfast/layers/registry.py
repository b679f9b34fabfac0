"""The one table of what can be bounded: module type -> rule."""

from __future__ import annotations

from torch import nn

from .activations import LeakyReLU, ReLU, Sigmoid, Softplus, Tanh
from .base import Layer
from .convolution import Convolution
from .dense import Dense
from .normalisation import BatchNorm
from .pooling import AveragePool
from .shapes import Dropout, Flatten, Identity

LAYERS: dict[type[nn.Module], type[Layer]] = {
    nn.Linear: Dense,
    nn.Conv2d: Convolution,
    nn.ReLU: ReLU,
    nn.LeakyReLU: LeakyReLU,
    nn.Tanh: Tanh,
    nn.Sigmoid: Sigmoid,
    nn.Softplus: Softplus,
    nn.Flatten: Flatten,
    nn.AvgPool2d: AveragePool,
    nn.AdaptiveAvgPool2d: AveragePool,
    nn.BatchNorm1d: BatchNorm,
    nn.BatchNorm2d: BatchNorm,
    nn.Identity: Identity,
    nn.Dropout: Dropout,
}
