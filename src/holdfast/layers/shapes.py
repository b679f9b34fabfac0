"""Layers that only move or average numbers: flatten, identity, dropout, average pooling."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import HoldfastWarning, UnsupportedModel
from ..intervals import Interval, Kind
from .base import Box, Layer


@dataclass(frozen=True)
class Identity(Layer):
    """y = x."""

    @classmethod
    def build(cls, name: str, module: nn.Module, kind: Kind, shape: tuple[int, ...]) -> Identity:
        return cls(name, kind)

    @property
    def output_kind(self) -> Kind:
        return self.kind

    def forward(self, inputs: Interval, box: Box) -> Interval:
        return inputs

    def backward(self, inputs: Interval, box: Box, outgoing: Interval) -> Interval:
        return outgoing


class Dropout(Identity):
    """Left out: the certified algorithm trains without it, and the user is told."""


def warn_of_dropout(name: str, module: nn.Dropout) -> None:
    """Say that a dropout layer does nothing here."""
    if module.p:
        warnings.warn(
            f"layer {name!r} ({module}) is left out: holdfast trains and certifies the model without dropout",
            HoldfastWarning,
            stacklevel=2,
        )


@dataclass(frozen=True)
class Flatten(Layer):
    """y = x with all dimensions but the first joined."""

    shape: tuple[int, ...]

    @classmethod
    def build(cls, name: str, module: nn.Flatten, kind: Kind, shape: tuple[int, ...]) -> Flatten:
        if module.start_dim != 1 or module.end_dim not in (-1, len(shape)):
            raise UnsupportedModel(f"layer {name!r} ({module}): expected nn.Flatten(), which joins all dimensions but the first")
        return cls(name, kind, shape)

    @property
    def output_kind(self) -> Kind:
        return self.kind

    def forward(self, inputs: Interval, box: Box) -> Interval:
        return inputs.both(lambda end: end.flatten(1))

    def backward(self, inputs: Interval, box: Box, outgoing: Interval) -> Interval:
        return outgoing.both(lambda end: end.unflatten(1, self.shape))


@dataclass(frozen=True)
class AveragePool(Layer):
    """y = P x with nonnegative P: each end by itself; dx = P^T d likewise."""

    pool: Callable[[Tensor], Tensor]

    @classmethod
    def build(cls, name: str, module: nn.AvgPool2d | nn.AdaptiveAvgPool2d, kind: Kind, shape: tuple[int, ...]) -> AveragePool:
        if isinstance(module, nn.AvgPool2d) and module.divisor_override is not None and module.divisor_override < 0:
            raise UnsupportedModel(f"layer {name!r}: divisor_override={module.divisor_override}: expected a positive number")
        return cls(name, kind, module)

    @property
    def output_kind(self) -> Kind:
        return self.kind

    def forward(self, inputs: Interval, box: Box) -> Interval:
        return inputs.both(self.pool)

    def backward(self, inputs: Interval, box: Box, outgoing: Interval) -> Interval:
        return outgoing.both(lambda end: self._transposed(inputs.lower, end))

    def _transposed(self, like: Tensor, outgoing: Tensor) -> Tensor:
        with torch.enable_grad():
            start = torch.zeros_like(like, requires_grad=True)
            return torch.autograd.grad(self.pool(start), start, outgoing)[0]
