"""Linear layers, batch normalisation in evaluation mode, and element-wise increasing activations.

The statistics of a normalisation layer are public numbers; its scale and shift may be trained.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import UnsupportedModel
from ..intervals import Interval, OperandKind, monotone, product
from ..kernels import ordered_sum, slope_product
from .base import Box, Gradient, Layer, pairs


@dataclass(frozen=True)
class Dense(Layer):
    """y = W x + b; gradients: dW = d x^T, db = d, dx = W^T d."""

    bias: bool

    @classmethod
    def build(
        cls, name: str, module: nn.Linear, kind: OperandKind, shape: tuple[int, ...]
    ) -> Dense:
        if len(shape) != 1:
            raise UnsupportedModel(
                f"layer {name!r} ({module}): a dense layer needs flat inputs, got {shape}; "
                "put nn.Flatten() before it"
            )
        return cls(name, kind, module.bias is not None)

    @property
    def output_kind(self) -> OperandKind:
        return OperandKind.ANY

    def forward(self, inputs: Interval, box: Box) -> Interval:
        weight = box[self.parameter("weight")]
        result = product(self.kind, inputs, weight.map_entries(lambda end: end.t()))
        return result + box[self.parameter("bias")] if self.bias else result

    def backward(self, inputs: Interval, box: Box, outgoing: Interval) -> Interval:
        return product(OperandKind.ANY, outgoing, box[self.parameter("weight")])

    def gradients(
        self, inputs: Interval, box: Box, outgoing: Interval
    ) -> Iterator[tuple[str, Gradient]]:
        yield self.parameter("weight"), Gradient(outgoing, inputs, self.kind)
        if self.bias:
            yield self.parameter("bias"), Gradient(outgoing)

    def pairwise(self, inputs: Interval, box: Box) -> Interval:
        """Return intervals of logit_i - logit_j, tighter than differences of the logits' intervals.

        The activations that two logits share are counted once, multiplied by W_i - W_j.
        """
        weight = box[self.parameter("weight")]
        first, second = pairs(weight.shape[0], weight.lower.device)
        differences = {
            name: Interval(
                value.lower[first] - value.upper[second], value.upper[first] - value.lower[second]
            )
            for name, value in box.items()
            if name in (self.parameter("weight"), self.parameter("bias"))
        }
        return self.forward(inputs, differences)


@dataclass(frozen=True, eq=False)
class BatchNorm(Layer):
    """y = w * t + b with t = x * scale + offset.

    scale = 1/sqrt(var + eps) > 0 and offset = -mean * scale are public.
    """

    scale: Tensor
    offset: Tensor
    affine: bool

    @classmethod
    def build(
        cls,
        name: str,
        module: nn.BatchNorm1d | nn.BatchNorm2d,
        kind: OperandKind,
        shape: tuple[int, ...],
    ) -> BatchNorm:
        assert module.running_mean is not None
        assert module.running_var is not None
        per_channel = (1, -1) + (1,) * (len(shape) - 1)
        scale = 1.0 / torch.sqrt(module.running_var + module.eps)
        return cls(
            name,
            kind,
            scale.view(per_channel),
            (-module.running_mean * scale).view(per_channel),
            module.affine,
        )

    @property
    def output_kind(self) -> OperandKind:
        return OperandKind.ANY

    def forward(self, inputs: Interval, box: Box) -> Interval:
        normal = self._normalised(inputs)
        return (
            normal * self._per_channel(box, "weight") + self._per_channel(box, "bias")
            if self.affine
            else normal
        )

    def backward(self, inputs: Interval, box: Box, outgoing: Interval) -> Interval:
        scaled = outgoing * self._per_channel(box, "weight") if self.affine else outgoing
        return scaled.map_increasing(lambda end: end * self.scale)

    def gradients(
        self, inputs: Interval, box: Box, outgoing: Interval
    ) -> Iterator[tuple[str, Gradient]]:
        if self.affine:
            yield (
                self.parameter("weight"),
                Gradient((outgoing * self._normalised(inputs)).map_increasing(sum_positions)),
            )
            yield self.parameter("bias"), Gradient(outgoing.map_increasing(sum_positions))

    def _normalised(self, inputs: Interval) -> Interval:
        return inputs.map_increasing(lambda end: end * self.scale + self.offset)

    def _per_channel(self, box: Box, name: str) -> Interval:
        return box[self.parameter(name)].map_entries(lambda end: end.view(self.scale.shape))


def refuse_batch_statistics(name: str, module: nn.modules.batchnorm._BatchNorm) -> None:
    """Raise if a layer normalises with the statistics of the current batch."""
    if module.running_mean is None or module.running_var is None:
        raise UnsupportedModel(
            f"layer {name!r} ({module}): without running statistics, a record's output depends on "
            "the other records; set track_running_stats=True and fit the statistics on public data"
        )
    if module.training:
        raise UnsupportedModel(
            f"layer {name!r} ({module}) is in training mode, in which a record's output depends on "
            "the other records; fit its statistics on public data, then call model.eval()"
        )


def sum_positions(end: Tensor) -> Tensor:
    """Return the sum of each channel over its positions, added one after the other."""
    return ordered_sum(end.flatten(2)) if end.dim() > 2 else end


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
