"""Two-dimensional convolution, written as a matrix product over patches so that one product rule serves all layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UnsupportedModel
from ..intervals import Interval, Kind, product
from .base import Box, Gradient, Layer
from .normalisation import over_places


@dataclass(frozen=True)
class Convolution(Layer):
    """y = W * x + b. With patches P (one column a place): y = W P, dW = sum over places of d P^T, dx = fold(W^T d)."""

    bias: bool
    groups: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]  # left, right, top, bottom
    padded: tuple[int, int]  # height and width of the input with its padding
    places: tuple[int, int]  # height and width of the output

    @classmethod
    def build(cls, name: str, module: nn.Conv2d, kind: Kind, shape: tuple[int, ...]) -> Convolution:
        if len(shape) != 3:
            raise UnsupportedModel(f"layer {name!r} ({module}): expected records of shape (channels, height, width), got {shape}")
        if module.padding_mode != "zeros":
            raise UnsupportedModel(f"layer {name!r}: padding_mode={module.padding_mode!r}: expected 'zeros'")
        left, right, top, bottom = module._reversed_padding_repeated_twice
        padded = (shape[1] + top + bottom, shape[2] + left + right)
        kernel, stride, dilation = (tuple(getattr(module, option)) for option in ("kernel_size", "stride", "dilation"))
        places = tuple((padded[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1))
        has_bias = module.bias is not None
        return cls(name, kind, has_bias, module.groups, kernel, stride, dilation, (left, right, top, bottom), padded, places)

    @property
    def output_kind(self) -> Kind:
        return Kind.ANY

    def forward(self, inputs: Interval, box: Box) -> Interval:
        records = inputs.shape[0]
        outputs = []
        for patches, weight in zip(self._patches(inputs), self._filters(box), strict=True):
            rows = patches.both(lambda end: end.transpose(1, 2).flatten(0, 1))
            result = product(self.kind, rows, weight.both(lambda end: end.t()))
            outputs.append(result.both(lambda end: end.unflatten(0, (records, -1)).transpose(1, 2)))
        joined = _join(outputs).both(lambda end: end.unflatten(2, self.places))
        return joined + box[self.parameter("bias")].both(lambda end: end.view(1, -1, 1, 1)) if self.bias else joined

    def backward(self, inputs: Interval, box: Box, outgoing: Interval) -> Interval:
        records = inputs.shape[0]
        patches = []
        for out, weight in zip(self._by_group(outgoing), self._filters(box), strict=True):
            rows = out.both(lambda end: end.transpose(1, 2).flatten(0, 1))
            result = product(Kind.ANY, rows, weight)
            patches.append(result.both(lambda end: end.unflatten(0, (records, -1)).transpose(1, 2)))
        return _join(patches).both(self._fold)

    def gradients(self, inputs: Interval, box: Box, outgoing: Interval) -> Iterator[tuple[str, Gradient]]:
        groups = []
        for patches, out in zip(self._patches(inputs), self._by_group(outgoing), strict=True):
            turned = product(self.kind, patches, out.both(lambda end: end.transpose(1, 2)))
            groups.append(turned.both(lambda end: end.transpose(1, 2).flatten(1)))
        yield self.parameter("weight"), Gradient(_join(groups))
        if self.bias:
            yield self.parameter("bias"), Gradient(outgoing.both(over_places))

    def _patches(self, inputs: Interval) -> list[Interval]:
        """For each group, (records, group inputs * kernel, places)."""
        unfolded = inputs.both(lambda end: F.unfold(F.pad(end, self.padding), self.kernel, dilation=self.dilation, stride=self.stride))
        return _split(unfolded, self.groups)

    def _fold(self, patches: Tensor) -> Tensor:
        image = F.fold(patches, self.padded, self.kernel, dilation=self.dilation, stride=self.stride)
        left, right, top, bottom = self.padding
        return image[:, :, top : self.padded[0] - bottom, left : self.padded[1] - right]

    def _by_group(self, outgoing: Interval) -> list[Interval]:
        return _split(outgoing.both(lambda end: end.flatten(2)), self.groups)

    def _filters(self, box: Box) -> list[Interval]:
        """For each group, (group outputs, group inputs * kernel)."""
        weight = box[self.parameter("weight")].both(lambda end: end.flatten(1))
        return _split(weight, self.groups, dim=0)


def _split(interval: Interval, groups: int, dim: int = 1) -> list[Interval]:
    if groups == 1:
        return [interval]
    ends = (interval.lower.chunk(groups, dim), interval.upper.chunk(groups, dim))
    return [Interval(lower, upper) for lower, upper in zip(*ends, strict=True)]


def _join(parts: list[Interval]) -> Interval:
    if len(parts) == 1:
        return parts[0]
    return Interval(torch.cat([part.lower for part in parts], 1), torch.cat([part.upper for part in parts], 1))
