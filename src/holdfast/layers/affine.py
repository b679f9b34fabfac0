"""Linear layers, and batch normalisation in evaluation mode.

The statistics of a normalisation layer are public numbers; its scale and shift may be trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import UnsupportedModel
from ..intervals import Interval, OperandKind, product
from ..kernels import ordered_sum
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
