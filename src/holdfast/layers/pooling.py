"""Average pooling: every output is the sum of a window, divided by a public number."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import UnsupportedModel
from ..intervals import Interval, Kind
from .base import Box, Layer
from .windows import gather_sum, transpose, windows


@dataclass(frozen=True, eq=False)
class AveragePool(Layer):
    """y = P x with nonnegative P: each end by itself; dx = P^T d likewise."""

    table: Tensor
    transposed: Tensor
    divisor: Tensor  # one per output
    image: tuple[int, int]
    places: tuple[int, int]

    @classmethod
    def build(cls, name: str, module: nn.AvgPool2d | nn.AdaptiveAvgPool2d, kind: Kind, shape: tuple[int, ...]) -> AveragePool:
        if len(shape) != 3:
            raise UnsupportedModel(f"layer {name!r} ({module}): expected records of shape (channels, height, width), got {shape}")
        if isinstance(module, nn.AvgPool2d) and module.divisor_override is not None and module.divisor_override < 0:
            raise UnsupportedModel(f"layer {name!r}: divisor_override={module.divisor_override}: expected a positive number")
        height, width = shape[1:]
        down, across = _axis(module, 0, height), _axis(module, 1, width)
        table = windows([cells for cells, _ in down], [cells for cells, _ in across], width)
        extents = [[rows[1] * columns[1] for columns in across] for rows in down]
        divisor = torch.tensor(extents).flatten()
        if isinstance(module, nn.AvgPool2d) and module.divisor_override:
            divisor = torch.full_like(divisor, module.divisor_override)
        return cls(name, kind, table, transpose(table, height * width), divisor, (height, width), (len(down), len(across)))

    @property
    def output_kind(self) -> Kind:
        return self.kind

    def forward(self, inputs: Interval, box: Box) -> Interval:
        return inputs.both(self._pooled)

    def backward(self, inputs: Interval, box: Box, outgoing: Interval) -> Interval:
        return outgoing.both(self._spread)

    def _pooled(self, end: Tensor) -> Tensor:
        sums = gather_sum(end.flatten(2).flatten(0, 1), self.table)
        return (sums / self.divisor.to(sums)).view(*end.shape[:2], *self.places)

    def _spread(self, end: Tensor) -> Tensor:
        shares = end.flatten(2).flatten(0, 1)
        return gather_sum(shares / self.divisor.to(shares), self.transposed).view(*end.shape[:2], *self.image)


def _axis(module: nn.AvgPool2d | nn.AdaptiveAvgPool2d, axis: int, size: int) -> list[tuple[range, int]]:
    """Return, for each output along one axis, its input cells and the factor they give to the divisor."""
    if isinstance(module, nn.AdaptiveAvgPool2d):
        count = _of(module.output_size, axis)
        count = size if count is None else count
        ranges = [range(i * size // count, math.ceil((i + 1) * size / count)) for i in range(count)]
        return [(cells, len(cells)) for cells in ranges]
    kernel, stride, padding = (_of(option, axis) for option in (module.kernel_size, module.stride, module.padding))
    assert kernel is not None
    assert stride is not None
    assert padding is not None
    free = size + 2 * padding - kernel
    count = (-(-free // stride) if module.ceil_mode else free // stride) + 1
    if module.ceil_mode and (count - 1) * stride >= size + padding:
        count -= 1  # the last window would begin in the padding
    result = []
    for start in range(-padding, count * stride - padding, stride):
        end = min(start + kernel, size + padding)
        cells = range(max(start, 0), min(end, size))
        result.append((cells, end - start if module.count_include_pad else len(cells)))
    return result


def _of(option: object, axis: int) -> int | None:
    return option[axis] if isinstance(option, tuple | list) else option  # type: ignore[return-value]
