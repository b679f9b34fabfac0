"""The contract of a layer, per-record gradients, and layers that only move numbers."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from .. import kernels
from ..errors import UnsupportedModel, warn
from ..intervals import Interval, OperandKind

Box = Mapping[str, Interval]
"""One interval per parameter, keyed by the parameter's name in the model."""


@dataclass(frozen=True)
class Gradient:
    """Per-record gradients as outer products, kept as factors and multiplied only in a kernel.

    For a parameter seen as a matrix (outputs x inputs), a record's gradient is
    [outgoing] x [inputs]. A gradient that is not a product has `inputs` None.
    """

    outgoing: Interval  # (records, outputs)
    inputs: Interval | None = None  # (records, inputs)
    kind: OperandKind = OperandKind.POINT

    def rows(self, chosen: Bool[Tensor, " records"]) -> Gradient:
        """Return the gradients of the chosen records."""
        inputs = None if self.inputs is None else self.inputs.map_entries(lambda end: end[chosen])
        return Gradient(self.outgoing.map_entries(lambda end: end[chosen]), inputs, self.kind)

    def add_to(self, totals: Tensor, largest: Any, limits: Tensor | None = None) -> None:
        """Add all records, clipped and in whole units, to `totals` and to `largest`.

        `limits` are the clips of the records in whole units; None: the clip of the recipe.
        """
        out = self.outgoing
        if self.inputs is None:  # 1 x [out], so that the loop runs over the outputs
            ones = out.lower.new_ones(len(out.lower), 1)
            kernels.add_gradients(ones, ones, out.lower, out.upper, totals, largest, limits)
        else:
            high = None if self.kind is OperandKind.POINT else self.inputs.upper
            inputs = self.inputs.lower
            kernels.add_gradients(out.lower, out.upper, inputs, high, totals, largest, limits)


@dataclass(frozen=True)
class Layer(abc.ABC):
    """One operation of the network.

    Guarantees:
        Every rule is sound and isotonic as executed: if one input contains another, so does its
        output. A record's result does not depend on the other records in the batch.
    """

    name: str  # the module's path in the model: the prefix of its parameters' names
    kind: OperandKind  # what the architecture guarantees about this layer's input

    @property
    @abc.abstractmethod
    def output_kind(self) -> OperandKind:
        """Return what is guaranteed about this layer's output."""

    @abc.abstractmethod
    def forward(self, inputs: Interval, box: Box) -> Interval:
        """Return the interval of this layer's output."""

    @abc.abstractmethod
    def backward(self, inputs: Interval, box: Box, outgoing: Interval) -> Interval:
        """Return the interval of the loss gradient at the input, given that at the output."""

    def gradients(
        self, inputs: Interval, box: Box, outgoing: Interval
    ) -> Iterator[tuple[str, Gradient]]:
        """Yield the per-record gradient of each of the layer's parameters; none by default."""
        return iter(())

    def pairwise(self, inputs: Interval, box: Box) -> Interval:
        """Return the intervals of logit_i - logit_j for all i < j, in the order of `pairs`.

        This is for the last layer, whose outputs are the logits.
        """
        logits = self.forward(inputs, box)
        first, second = pairs(logits.shape[1], logits.lower.device)
        return Interval(
            logits.lower[:, first] - logits.upper[:, second],
            logits.upper[:, first] - logits.lower[:, second],
        )

    def parameter(self, name: str) -> str:
        """Return the full name of one of this layer's parameters."""
        return f"{self.name}.{name}" if self.name else name


def pairs(classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return all pairs of classes i < j, as two index vectors."""
    first, second = torch.triu_indices(classes, classes, offset=1, device=device)
    return first, second


@dataclass(frozen=True)
class Identity(Layer):
    """y = x."""

    @classmethod
    def build(
        cls, name: str, module: nn.Module, kind: OperandKind, shape: tuple[int, ...]
    ) -> Identity:
        return cls(name, kind)

    @property
    def output_kind(self) -> OperandKind:
        return self.kind

    def forward(self, inputs: Interval, box: Box) -> Interval:
        return inputs

    def backward(self, inputs: Interval, box: Box, outgoing: Interval) -> Interval:
        return outgoing


class Dropout(Identity):
    """Dropout, treated as the identity: training and certification leave it out."""


def warn_of_dropout(name: str, module: nn.Dropout) -> None:
    """Warn that a dropout layer with a nonzero rate has no effect."""
    if module.p:
        warn(
            f"layer {name!r} "
            f"({module}) is ignored: holdfast trains and certifies the model without dropout"
        )


@dataclass(frozen=True)
class Flatten(Layer):
    """y = x, with all dimensions but the first flattened."""

    shape: tuple[int, ...]

    @classmethod
    def build(
        cls, name: str, module: nn.Flatten, kind: OperandKind, shape: tuple[int, ...]
    ) -> Flatten:
        if module.start_dim != 1 or module.end_dim not in (-1, len(shape)):
            raise UnsupportedModel(
                f"layer {name!r} "
                f"({module}): expected nn.Flatten(), which flattens all dimensions but the first"
            )
        return cls(name, kind, shape)

    @property
    def output_kind(self) -> OperandKind:
        return self.kind

    def forward(self, inputs: Interval, box: Box) -> Interval:
        return inputs.map_entries(lambda end: end.flatten(1))

    def backward(self, inputs: Interval, box: Box, outgoing: Interval) -> Interval:
        return outgoing.map_entries(lambda end: end.unflatten(1, self.shape))
