"""Network: a torch model split into a public frozen front and the layers that are bounded."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from ..errors import UnsupportedModel
from ..intervals import Interval, OperandKind
from ..kernels import MAX_BLOCK_RECORDS
from ..workers import no_grad_no_autocast
from .base import Box, Gradient, Layer
from .front import Front
from .registry import (
    LAYERS,
    is_trainable,
    leaf_layers,
    own_copy,
    record_shapes,
    refuse_layers,
    refuse_parameters,
)

Rows = Bool[Tensor, " records"]

_PROBES = 3  # random records on which the rules are compared with the model
_BLOCK_ENTRIES = 2**21  # numbers that the widest layer may hold for one block of records


@dataclass(frozen=True)
class ForwardPass:
    """The inputs of every layer, from first to last.

    Rows in which a number overflowed have `finite` False and hold arbitrary finite numbers.
    """

    inputs: tuple[Interval, ...]
    finite: Rows

    def append(self, outputs: Interval) -> ForwardPass:
        """Return this pass with the next layer's outputs appended."""
        contained, finite = outputs.zero_overflowed_rows()
        return ForwardPass((*self.inputs, contained), self.finite & finite)


@dataclass(frozen=True)
class Outputs:
    """The outputs of the last layer.

    Rows in which a number overflowed in any layer have `finite` False and hold arbitrary finite
    numbers.
    """

    logits: Interval  # (records, outputs)
    pairs: Interval  # (records, pairs): logit_i - logit_j for all i < j
    finite: Rows


@dataclass(frozen=True, eq=False)
class Network:
    """A model prepared for certification.

    It is built by `Network.of`, which raises if the model cannot be bounded.
    """

    model: nn.Module  # a copy of the user's model, in evaluation mode
    front: Front
    layers: tuple[Layer, ...]
    parameters: Mapping[str, Tensor]  # initial values of all parameters after the front
    trainable: tuple[str, ...]
    outputs: int
    block_rows: int  # the maximum number of records to propagate at a time

    @classmethod
    def of(cls, model: nn.Module, record_shape: tuple[int, ...]) -> Network:
        """Split and check a model; `record_shape` is the shape of one record."""
        refuse_parameters(model)
        dtype = next(p.dtype for p in model.parameters() if p.requires_grad)
        model = own_copy(model, dtype)
        leaves = list(leaf_layers(model))
        cut = next(i for i, (_, leaf) in enumerate(leaves) if is_trainable(leaf))
        refuse_layers(leaves, cut)
        model.eval()
        shapes = record_shapes(leaves, record_shape, dtype, _device(model))
        front = Front.of(leaves[:cut], shapes, dtype)
        layers = _layers(leaves[cut:], shapes[cut:])
        if len(shapes[-1]) != 1:
            raise UnsupportedModel(
                f"the model's output has shape {shapes[-1]} per record: expected one row of logits"
            )
        parameters = {
            f"{name}.{key}" if name else key: p
            for name, leaf in leaves[cut:]
            for key, p in leaf.named_parameters()
        }
        widest = _widest(layers, shapes[cut:])
        network = cls(
            model=model,
            front=front,
            layers=tuple(layers),
            parameters={name: p.detach().clone() for name, p in parameters.items()},
            trainable=tuple(name for name, p in parameters.items() if p.requires_grad),
            outputs=shapes[-1][0],
            block_rows=_records_per_block(_BLOCK_ENTRIES, widest),
        )
        _refuse_rules_that_differ_from_model(network)
        return network

    @property
    def dtype(self) -> torch.dtype:
        return self.front.dtype

    @property
    def device(self) -> torch.device:
        return next(iter(self.parameters.values())).device

    def box(self, trained: Box) -> Box:
        """Return the box of all parameters after the front, with frozen ones as points."""
        frozen = {
            name: Interval.point(value)
            for name, value in self.parameters.items()
            if name not in self.trainable
        }
        return {**frozen, **trained}

    def first_input(self, features: Tensor) -> ForwardPass:
        """Return the input of the first layer, given the records' features from the front.

        It is the same for every box.
        """
        points, finite = Interval.point(features.to(self.device)).zero_overflowed_rows()
        return ForwardPass((points,), finite)

    def forward(self, entered: ForwardPass, box: Box) -> ForwardPass:
        """Propagate records through all layers but the last."""
        passed = entered
        for layer in self.layers[:-1]:
            passed = passed.append(layer.forward(passed.inputs[-1], box))
        return passed

    def outputs_of(self, passed: ForwardPass, box: Box) -> Outputs:
        """Propagate records through the last layer.

        Logits and their differences must both be finite, because labels are decided by the
        differences, and ties at distance 0 by the logits.
        """
        last, inputs = self.layers[-1], passed.inputs[-1]
        logits = last.forward(inputs, box)
        pairs = (
            last.pairwise(inputs, box) if self.outputs > 1 else Interval.point(logits.lower[:, :0])
        )
        (logits, logits_finite), (pairs, pairs_finite) = (
            logits.zero_overflowed_rows(),
            pairs.zero_overflowed_rows(),
        )
        return Outputs(logits, pairs, passed.finite & logits_finite & pairs_finite)

    def backward(
        self, passed: ForwardPass, box: Box, outgoing: Interval, finite: Rows
    ) -> Iterator[tuple[str, Gradient, Rows]]:
        """Yield the gradients of all trainable parameters, layer by layer from the last.

        Args:
            passed: What `forward` returned.
            box: The box of parameters.
            outgoing: The gradient at the logits.
            finite: The rows that have not overflowed so far.

        Yields:
            The parameter's name, its gradient, and which of its rows are valid.
        """
        for place in range(len(self.layers) - 1, -1, -1):
            layer, inputs = self.layers[place], passed.inputs[place]
            outgoing, still = outgoing.zero_overflowed_rows()
            finite = finite & still
            for name, gradient in layer.gradients(inputs, box, outgoing):
                if name in self.trainable:
                    made = gradient.outgoing is not outgoing
                    yield (
                        name,
                        gradient,
                        finite & gradient.outgoing.zero_overflowed_rows()[1] if made else finite,
                    )
            if place:
                outgoing = layer.backward(inputs, box, outgoing)

    def module(self, values: Mapping[str, Tensor]) -> nn.Module:
        """Return a copy of the model with the given parameter values."""
        model = copy.deepcopy(self.model)
        with torch.no_grad():
            for name, value in values.items():
                model.get_parameter(name).copy_(value)
        return model


def _device(model: nn.Module) -> torch.device:
    return next(p.device for p in model.parameters())


def _layers(leaves: list[tuple[str, nn.Module]], shapes: list[tuple[int, ...]]) -> list[Layer]:
    layers: list[Layer] = []
    for (name, leaf), shape in zip(leaves, shapes, strict=False):
        kind = layers[-1].output_kind if layers else OperandKind.POINT
        family: Any = LAYERS[type(leaf)]
        layers.append(family.build(name, leaf, kind, shape))
    return layers


def _widest(layers: list[Layer], shapes: list[tuple[int, ...]]) -> int:
    """Return the most numbers per record that any layer, or the logit differences, need."""
    pairs = shapes[-1][0] * (shapes[-1][0] - 1) // 2
    return max(
        pairs,
        *(_entries(layer, shape) for layer, shape in zip([*layers, None], shapes, strict=True)),
    )


def _records_per_block(entries: int, widest: int) -> int:
    """Return how many records to propagate at a time.

    It is a power of two that depends on shapes alone.
    """
    return min(MAX_BLOCK_RECORDS, 1 << max(0, (entries // widest).bit_length() - 1))


def _entries(layer: Layer | None, shape: tuple[int, ...]) -> int:
    """Return how many numbers a layer needs for one record, patches included."""
    kernel: tuple[int, int] = getattr(layer, "kernel", (1, 1))
    return math.prod(shape) * math.prod(kernel)


def _refuse_rules_that_differ_from_model(network: Network) -> None:
    """Raise if the rules and the model give different outputs.

    They differ, for example, if the model has hooks or overridden forward methods.
    """
    generator = torch.Generator().manual_seed(0)
    records = torch.randn(
        _PROBES, *network.front.record_shape, generator=generator, dtype=network.dtype
    )
    box = {name: Interval.point(value) for name, value in network.parameters.items()}
    features = network.front(records)
    with no_grad_no_autocast():
        outputs = network.outputs_of(network.forward(network.first_input(features), box), box)
        _refuse_difference(
            features,
            torch.cat(
                [_run_layers(network.front.layers, record) for record in records.to(network.device)]
            ),
        )
        theirs = torch.cat([network.model(record[None]) for record in records.to(network.device)])
    _refuse_difference(outputs.logits.lower[outputs.finite], theirs[outputs.finite])


def _run_layers(layers: tuple[tuple[str, nn.Module], ...], record: Tensor) -> Tensor:
    features = record[None]
    for _, layer in layers:
        features = layer(features)
    return features


def _refuse_difference(ours: Tensor, theirs: Tensor) -> None:
    comparable = ours.flatten(1).isfinite().all(1) & theirs.flatten(1).isfinite().all(1).to(
        ours.device
    )
    ours, theirs = ours[comparable], theirs.to(ours.device, ours.dtype)[comparable]
    if len(ours) and not torch.allclose(
        ours, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max() + 1)
    ):
        raise UnsupportedModel(
            "the model's outputs differ from those of its layers: "
            "remove hooks and overridden forward methods"
        )
