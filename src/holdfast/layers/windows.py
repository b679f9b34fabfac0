"""Layers over windows of an image: two-dimensional convolution and average pooling.

Patches, their transpose (fold) and pooling are read off tables of cell numbers. A table has one
column per output and one row per term; an entry is the number of an input cell, or `EMPTY`. Outputs
are added up term by term in the order of the rows, by element-wise additions, so the order depends
on the shapes alone. A convolution is a matrix product over patches, so one product rule serves all
layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..errors import UnsupportedModel
from ..intervals import Interval, OperandKind, product
from .base import Box, Gradient, Layer
from .dense import sum_positions

EMPTY = -1

Table = Int64[Tensor, "terms outputs"]


def gather_sum(values: Float[Tensor, "rows cells"], table: Table) -> Float[Tensor, "rows outputs"]:
    """Return, for every output, the sum of the cells in its column of the table."""
    # The last cell, which index EMPTY (-1) selects, is 0.
    with_zero = torch.cat([values, values.new_zeros(len(values), 1)], 1)
    table = table.to(values.device)
    total = with_zero[:, table[0]]
    for terms in table[1:]:
        total = total + with_zero[:, terms]
    return total


def transpose(table: Table, cells: int) -> Int64[Tensor, "entries {cells}"]:
    """Return the table of the transposed map: for every cell, its outputs in ascending order."""
    outputs = torch.arange(table.shape[1]).expand_as(table)[table != EMPTY]
    entered = table[table != EMPTY]
    order = (entered * (table.shape[1] + 1) + outputs).argsort()
    entered, outputs = entered[order], outputs[order]
    counts = torch.bincount(entered, minlength=cells)
    place = torch.arange(len(entered)) - (counts.cumsum(0) - counts)[entered]
    result = torch.full((max(1, int(counts.max())), cells), EMPTY)
    result[place, entered] = outputs
    return result


def windows(rows: list[range], columns: list[range], width: int) -> Table:
    """Return the table of all windows: each pair of a range of rows and a range of columns."""
    cells = [
        [row * width + column for row in down for column in across]
        for down in rows
        for across in columns
    ]
    most = max(1, *(len(window) for window in cells))
    return torch.tensor(
        [window + [EMPTY] * (most - len(window)) for window in cells]
    ).T.contiguous()


@dataclass(frozen=True, eq=False)
class Convolution(Layer):
    """y = W * x + b.

    With patches P (one column per output position): y = W P + b, dW = sum over positions of d P^T,
    dx = fold(W^T d).
    """

    bias: bool
    groups: int
    kernel: tuple[int, ...]
    image: tuple[int, ...]  # channels, height and width of the input
    places: tuple[int, int]  # height and width of the output
    patches: Tensor  # table with one term: the input cells of all patches
    folds: Tensor  # the transpose of that table

    @classmethod
    def build(
        cls, name: str, module: nn.Conv2d, kind: OperandKind, shape: tuple[int, ...]
    ) -> Convolution:
        if len(shape) != 3:
            raise UnsupportedModel(
                f"layer {name!r} "
                f"({module}): expected records of shape (channels, height, width), got {shape}"
            )
        if module.padding_mode != "zeros":
            raise UnsupportedModel(
                f"layer {name!r}: padding_mode={module.padding_mode!r}: expected 'zeros'"
            )
        cells = torch.arange(1.0, math.prod(shape) + 1, dtype=torch.float64).view(1, *shape)
        padded = F.pad(cells, tuple(module._reversed_padding_repeated_twice))
        stride, dilation, kernel = module.stride, module.dilation, module.kernel_size
        # Cells are numbered from 1 and padding is 0, so subtracting 1 turns padding into EMPTY.
        table = F.unfold(padded, kernel, dilation=dilation, stride=stride).long().view(1, -1) - 1
        assert EMPTY == -1
        across = [
            (padded.shape[2 + i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
            for i in (0, 1)
        ]
        folds = transpose(table, math.prod(shape))
        return cls(
            name,
            kind,
            module.bias is not None,
            module.groups,
            kernel,
            shape,
            (across[0], across[1]),
            table,
            folds,
        )

    @property
    def output_kind(self) -> OperandKind:
        return OperandKind.ANY

    def forward(self, inputs: Interval, box: Box) -> Interval:
        records = inputs.shape[0]
        outputs = []
        for patches, weight in zip(self._patches(inputs), self._filters(box), strict=True):
            rows = patches.map_entries(lambda end: end.transpose(1, 2).flatten(0, 1))
            result = product(self.kind, rows, weight.map_entries(lambda end: end.t()))
            outputs.append(
                result.map_entries(lambda end: end.unflatten(0, (records, -1)).transpose(1, 2))
            )
        joined = _join(outputs).map_entries(lambda end: end.unflatten(2, self.places))
        return (
            joined + box[self.parameter("bias")].map_entries(lambda end: end.view(1, -1, 1, 1))
            if self.bias
            else joined
        )

    def backward(self, inputs: Interval, box: Box, outgoing: Interval) -> Interval:
        records = inputs.shape[0]
        patches = []
        for out, weight in zip(self._by_group(outgoing), self._filters(box), strict=True):
            rows = out.map_entries(lambda end: end.transpose(1, 2).flatten(0, 1))
            result = product(OperandKind.ANY, rows, weight)
            patches.append(
                result.map_entries(lambda end: end.unflatten(0, (records, -1)).transpose(1, 2))
            )
        return _join(patches).map_increasing(self._fold)

    def gradients(
        self, inputs: Interval, box: Box, outgoing: Interval
    ) -> Iterator[tuple[str, Gradient]]:
        groups = []
        for patches, out in zip(self._patches(inputs), self._by_group(outgoing), strict=True):
            turned = product(self.kind, patches, out.map_entries(lambda end: end.transpose(1, 2)))
            groups.append(turned.map_entries(lambda end: end.transpose(1, 2).flatten(1)))
        yield self.parameter("weight"), Gradient(_join(groups))
        if self.bias:
            yield self.parameter("bias"), Gradient(outgoing.map_increasing(sum_positions))

    def _patches(self, inputs: Interval) -> list[Interval]:
        """Return the patches of each group: (records, group inputs * kernel, places)."""
        size = self.image[0] * math.prod(self.kernel)
        return _split(
            inputs.map_entries(
                lambda end: gather_sum(end.flatten(1), self.patches).view(len(end), size, -1)
            ),
            self.groups,
        )

    def _fold(self, patches: Tensor) -> Tensor:
        return gather_sum(patches.flatten(1), self.folds).view(len(patches), *self.image)

    def _by_group(self, outgoing: Interval) -> list[Interval]:
        return _split(outgoing.map_entries(lambda end: end.flatten(2)), self.groups)

    def _filters(self, box: Box) -> list[Interval]:
        """Return the filters of each group: (group outputs, group inputs * kernel)."""
        weight = box[self.parameter("weight")].map_entries(lambda end: end.flatten(1))
        return _split(weight, self.groups, dim=0)


def _split(interval: Interval, groups: int, dim: int = 1) -> list[Interval]:
    if groups == 1:
        return [interval]
    ends = (interval.lower.chunk(groups, dim), interval.upper.chunk(groups, dim))
    return [Interval(lower, upper) for lower, upper in zip(*ends, strict=True)]


def _join(parts: list[Interval]) -> Interval:
    if len(parts) == 1:
        return parts[0]
    return Interval(
        torch.cat([part.lower for part in parts], 1), torch.cat([part.upper for part in parts], 1)
    )


@dataclass(frozen=True, eq=False)
class AveragePool(Layer):
    """y = P x with nonnegative P, applied to each end separately; dx = P^T d likewise."""

    table: Tensor
    transposed: Tensor
    divisor: Tensor  # one per output
    image: tuple[int, int]
    places: tuple[int, int]

    @classmethod
    def build(
        cls,
        name: str,
        module: nn.AvgPool2d | nn.AdaptiveAvgPool2d,
        kind: OperandKind,
        shape: tuple[int, ...],
    ) -> AveragePool:
        if len(shape) != 3:
            raise UnsupportedModel(
                f"layer {name!r} "
                f"({module}): expected records of shape (channels, height, width), got {shape}"
            )
        if (
            isinstance(module, nn.AvgPool2d)
            and module.divisor_override is not None
            and module.divisor_override < 0
        ):
            raise UnsupportedModel(
                f"layer {name!r}: "
                f"divisor_override={module.divisor_override}: expected a positive number"
            )
        height, width = shape[1:]
        down, across = _axis(module, 0, height), _axis(module, 1, width)
        table = windows([cells for cells, _ in down], [cells for cells, _ in across], width)
        extents = [[rows[1] * columns[1] for columns in across] for rows in down]
        divisor = torch.tensor(extents).flatten()
        if isinstance(module, nn.AvgPool2d) and module.divisor_override:
            divisor = torch.full_like(divisor, module.divisor_override)
        return cls(
            name,
            kind,
            table,
            transpose(table, height * width),
            divisor,
            (height, width),
            (len(down), len(across)),
        )

    @property
    def output_kind(self) -> OperandKind:
        return self.kind

    def forward(self, inputs: Interval, box: Box) -> Interval:
        return inputs.map_increasing(self._pooled)

    def backward(self, inputs: Interval, box: Box, outgoing: Interval) -> Interval:
        return outgoing.map_increasing(self._unpooled)

    def _pooled(self, end: Tensor) -> Tensor:
        sums = gather_sum(end.flatten(2).flatten(0, 1), self.table)
        return (sums / self.divisor.to(sums)).view(*end.shape[:2], *self.places)

    def _unpooled(self, end: Tensor) -> Tensor:
        shares = end.flatten(2).flatten(0, 1)
        return gather_sum(shares / self.divisor.to(shares), self.transposed).view(
            *end.shape[:2], *self.image
        )


def _axis(
    module: nn.AvgPool2d | nn.AdaptiveAvgPool2d, axis: int, size: int
) -> list[tuple[range, int]]:
    """Return, for each output along one axis, its input cells and their factor of the divisor."""
    if isinstance(module, nn.AdaptiveAvgPool2d):
        count = _along_axis(module.output_size, axis)
        count = size if count is None else count
        ranges = [range(i * size // count, math.ceil((i + 1) * size / count)) for i in range(count)]
        return [(cells, len(cells)) for cells in ranges]
    kernel, stride, padding = (
        _along_axis(option, axis) for option in (module.kernel_size, module.stride, module.padding)
    )
    assert kernel is not None
    assert stride is not None
    assert padding is not None
    free = size + 2 * padding - kernel
    count = (-(-free // stride) if module.ceil_mode else free // stride) + 1
    if module.ceil_mode and (count - 1) * stride >= size + padding:
        count -= 1  # the last window would start in the padding
    result = []
    for start in range(-padding, count * stride - padding, stride):
        end = min(start + kernel, size + padding)
        cells = range(max(start, 0), min(end, size))
        result.append((cells, end - start if module.count_include_pad else len(cells)))
    return result


def _along_axis(option: Any, axis: int) -> int | None:
    value: int | None = option[axis] if isinstance(option, tuple | list) else option
    return value
