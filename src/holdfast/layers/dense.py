"""Dense layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from ..errors import UnsupportedModel
from ..intervals import Interval, Kind, product
from .base import Box, Gradient, Layer, pairs


@dataclass(frozen=True)
class Dense(Layer):
    """y = W x + b; gradients: dW = d x^T, db = d, dx = W^T d."""

    bias: bool

    @classmethod
    def build(cls, name: str, module: nn.Linear, kind: Kind, shape: tuple[int, ...]) -> Dense:
        if len(shape) != 1:
            raise UnsupportedModel(f"layer {name!r} ({module}): a dense layer needs flat inputs, got {shape}; put nn.Flatten() before it")
        return cls(name, kind, module.bias is not None)

    @property
    def output_kind(self) -> Kind:
        return Kind.ANY

    def forward(self, inputs: Interval, box: Box) -> Interval:
        weight = box[self.parameter("weight")]
        result = product(self.kind, inputs, weight.rearranged(lambda end: end.t()))
        return result + box[self.parameter("bias")] if self.bias else result

    def backward(self, inputs: Interval, box: Box, outgoing: Interval) -> Interval:
        return product(Kind.ANY, outgoing, box[self.parameter("weight")])

    def gradients(self, inputs: Interval, box: Box, outgoing: Interval) -> Iterator[tuple[str, Gradient]]:
        yield self.parameter("weight"), Gradient(outgoing, inputs, self.kind)
        if self.bias:
            yield self.parameter("bias"), Gradient(outgoing)

    def pairwise(self, inputs: Interval, box: Box) -> Interval:
        """Tighter than the difference of two logits: the activations they share are counted once, against W_i - W_j."""
        weight = box[self.parameter("weight")]
        first, second = pairs(weight.shape[0], weight.lower.device)
        differences = {
            name: Interval(value.lower[first] - value.upper[second], value.upper[first] - value.lower[second])
            for name, value in box.items()
            if name in (self.parameter("weight"), self.parameter("bias"))
        }
        return self.forward(inputs, differences)
