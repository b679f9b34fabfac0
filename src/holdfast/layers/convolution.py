"""Two-dimensional convolution, written as a matrix product over patches so that one product rule serves all layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UnsupportedModel
from ..intervals import Interval, Kind, product
from .base import Box, Gradient, Layer
from .normalisation import over_places
from .windows import EMPTY, gather_sum, transpose


@dataclass(frozen=True, eq=False)
class Convolution(Layer):
    """y = W * x + b. With patches P (one column per place): y = W P, dW = sum over places of d P^T, dx = fold(W^T d)."""

    bias: bool
    groups: int
    kernel: tuple[int, ...]
    image: tuple[int, ...]  # channels, height and width of the input
    places: tuple[int, int]  # height and width of the output
    patches: Tensor  # the cells of the input that make up the patches, as a table of one term
    folds: Tensor  # the transposed table

    @classmethod
    def build(cls, name: str, module: nn.Conv2d, kind: Kind, shape: tuple[int, ...]) -> Convolution:
        if len(shape) != 3:
            raise UnsupportedModel(f"layer {name!r} ({module}): expected records of shape (channels, height, width), got {shape}")
        if module.padding_mode != "zeros":
            raise UnsupportedModel(f"layer {name!r}: padding_mode={module.padding_mode!r}: expected 'zeros'")
        cells = torch.arange(1.0, math.prod(shape) + 1, dtype=torch.float64).view(1, *shape)
        padded = F.pad(cells, tuple(module._reversed_padding_repeated_twice))
        stride, dilation, kernel = module.stride, module.dilation, module.kernel_size
        table = F.unfold(padded, kernel, dilation=dilation, stride=stride).long().view(1, -1) - 1  # padding is 0, and so EMPTY
        assert EMPTY == -1
        across = [(padded.shape[2 + i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)]
        folds = transpose(table, math.prod(shape))
        return cls(name, kind, module.bias is not None, module.groups, kernel, shape, (across[0], across[1]), table, folds)

    @property
    def output_kind(self) -> Kind:
        return Kind.ANY

    def forward(self, inputs: Interval, box: Box) -> Interval:
        records = inputs.shape[0]
        outputs = []
        for patches, weight in zip(self._patches(inputs), self._filters(box), strict=True):
            rows = patches.rearranged(lambda end: end.transpose(1, 2).flatten(0, 1))
            result = product(self.kind, rows, weight.rearranged(lambda end: end.t()))
            outputs.append(result.rearranged(lambda end: end.unflatten(0, (records, -1)).transpose(1, 2)))
        joined = _join(outputs).rearranged(lambda end: end.unflatten(2, self.places))
        return joined + box[self.parameter("bias")].rearranged(lambda end: end.view(1, -1, 1, 1)) if self.bias else joined

    def backward(self, inputs: Interval, box: Box, outgoing: Interval) -> Interval:
        records = inputs.shape[0]
        patches = []
        for out, weight in zip(self._by_group(outgoing), self._filters(box), strict=True):
            rows = out.rearranged(lambda end: end.transpose(1, 2).flatten(0, 1))
            result = product(Kind.ANY, rows, weight)
            patches.append(result.rearranged(lambda end: end.unflatten(0, (records, -1)).transpose(1, 2)))
        return _join(patches).both(self._fold)

    def gradients(self, inputs: Interval, box: Box, outgoing: Interval) -> Iterator[tuple[str, Gradient]]:
        groups = []
        for patches, out in zip(self._patches(inputs), self._by_group(outgoing), strict=True):
            turned = product(self.kind, patches, out.rearranged(lambda end: end.transpose(1, 2)))
            groups.append(turned.rearranged(lambda end: end.transpose(1, 2).flatten(1)))
        yield self.parameter("weight"), Gradient(_join(groups))
        if self.bias:
            yield self.parameter("bias"), Gradient(outgoing.both(over_places))

    def _patches(self, inputs: Interval) -> list[Interval]:
        """For each group, (records, group inputs * kernel, places)."""
        size = self.image[0] * math.prod(self.kernel)
        return _split(inputs.rearranged(lambda end: gather_sum(end.flatten(1), self.patches).view(len(end), size, -1)), self.groups)

    def _fold(self, patches: Tensor) -> Tensor:
        return gather_sum(patches.flatten(1), self.folds).view(len(patches), *self.image)

    def _by_group(self, outgoing: Interval) -> list[Interval]:
        return _split(outgoing.rearranged(lambda end: end.flatten(2)), self.groups)

    def _filters(self, box: Box) -> list[Interval]:
        """For each group, (group outputs, group inputs * kernel)."""
        weight = box[self.parameter("weight")].rearranged(lambda end: end.flatten(1))
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
