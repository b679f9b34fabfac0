"""Element-wise increasing activations: y = f(x), dx = f'(x) * d, with f' bounded over x."""

from __future__ import annotations

import abc
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import UnsupportedModel
from ..intervals import Interval, OperandKind, monotone
from ..kernels import slope_product
from .base import Box, Layer


@dataclass(frozen=True)
class Activation(Layer):
    """Base class of activations; subclasses define the function and the range of its slope."""

    @classmethod
    def build(
        cls, name: str, module: nn.Module, kind: OperandKind, shape: tuple[int, ...]
    ) -> Activation:
        return cls(name, kind)

    @abc.abstractmethod
    def function(self, x: Tensor) -> Tensor:
        """Return f(x); increasing as executed."""

    @abc.abstractmethod
    def slope(self, x: Interval) -> Interval:
        """Return the range of f' >= 0 over an interval; isotonic as executed."""

    @property
    def output_kind(self) -> OperandKind:
        return OperandKind.NONNEGATIVE

    def forward(self, inputs: Interval, box: Box) -> Interval:
        return inputs.map_increasing(self.function)

    def backward(self, inputs: Interval, box: Box, outgoing: Interval) -> Interval:
        slope = self.slope(inputs)
        return Interval(*slope_product(slope.lower, slope.upper, outgoing.lower, outgoing.upper))


def _kink_slope(x: Interval, low: float) -> Interval:
    """Return the slope of a piecewise linear function with a kink at 0.

    The slope is `low` up to and including 0 (torch's convention), and 1 above.
    """
    return x.map_increasing(
        lambda end: torch.where(end > 0, end.new_tensor(1.0), end.new_tensor(low))
    )


def _magnitude(x: Interval) -> Interval:
    """Return the range of |t| for t in x."""
    least = torch.maximum(x.lower, -x.upper).clamp(min=0)
    return Interval(least, torch.maximum(x.lower.abs(), x.upper.abs()))


def _tanh_slope(x: Interval) -> Interval:
    """Return the range of 1 - tanh(t)^2, which decreases in |t|."""
    size = _magnitude(x).map_increasing(monotone.tanh)
    return Interval(1.0 - size.upper * size.upper, 1.0 - size.lower * size.lower)


class ReLU(Activation):
    def function(self, x: Tensor) -> Tensor:
        return x.clamp(min=0)

    def slope(self, x: Interval) -> Interval:
        return x.map_increasing(lambda end: (end > 0).to(end.dtype))


@dataclass(frozen=True)
class LeakyReLU(Activation):
    negative_slope: float

    @classmethod
    def build(
        cls, name: str, module: nn.Module, kind: OperandKind, shape: tuple[int, ...]
    ) -> LeakyReLU:
        low = float(module.negative_slope)  # type: ignore[arg-type]
        if not 0.0 <= low <= 1.0:
            raise UnsupportedModel(
                f"layer {name!r}: negative_slope={low}: expected a number from 0 to 1"
            )
        return cls(name, kind, low)

    @property
    def output_kind(self) -> OperandKind:
        return OperandKind.ANY

    def function(self, x: Tensor) -> Tensor:
        return torch.maximum(x, x * self.negative_slope)

    def slope(self, x: Interval) -> Interval:
        return _kink_slope(x, self.negative_slope)


class Tanh(Activation):
    @property
    def output_kind(self) -> OperandKind:
        return OperandKind.ANY

    def function(self, x: Tensor) -> Tensor:
        return monotone.tanh(x)

    def slope(self, x: Interval) -> Interval:
        return _tanh_slope(x)


class Sigmoid(Activation):
    def function(self, x: Tensor) -> Tensor:
        return monotone.sigmoid(x)

    def slope(self, x: Interval) -> Interval:
        """Return the range of sigmoid' = (1 - tanh(x/2)^2) / 4.

        This form is used because it is monotone in |x| as executed.
        """
        return _tanh_slope(x.map_increasing(lambda end: end / 2)).map_increasing(
            lambda end: end / 4
        )


@dataclass(frozen=True)
class Softplus(Activation):
    @classmethod
    def build(
        cls, name: str, module: nn.Module, kind: OperandKind, shape: tuple[int, ...]
    ) -> Softplus:
        if module.beta != 1:
            raise UnsupportedModel(f"layer {name!r}: Softplus(beta={module.beta}): expected beta=1")
        return cls(name, kind)

    def function(self, x: Tensor) -> Tensor:
        return monotone.softplus(x)

    def slope(self, x: Interval) -> Interval:
        return x.map_increasing(monotone.sigmoid)
