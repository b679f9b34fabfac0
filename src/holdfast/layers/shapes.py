"""Layers that only move numbers: flatten, identity, dropout."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from torch import nn

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
        return inputs.rearranged(lambda end: end.flatten(1))

    def backward(self, inputs: Interval, box: Box, outgoing: Interval) -> Interval:
        return outgoing.rearranged(lambda end: end.unflatten(1, self.shape))
