"""Network: a torch model split into a public frozen prefix and the layers that are bounded."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from ..errors import UnsupportedModel
from ..intervals import Interval, Kind
from ..kernels import BLOCK
from .base import Box, Gradient, Layer
from .prefix import Prefix
from .table import LAYERS

_BLOCK_ENTRIES = 2**21  # numbers that the widest layer may hold for one block of records
_QUERY_ROWS = 256


@dataclass(frozen=True)
class Outputs:
    """The end of a forward pass: the last layer and its input, from which logits or their differences follow."""

    layer: Layer
    inputs: Interval
    box: Box
    count: int  # how many logits

    @cached_property
    def logits(self) -> Interval:
        """(records, outputs)."""
        return self.layer.forward(self.inputs, self.box)

    @cached_property
    def pairs(self) -> Interval:
        """(records, pairs): logit_i - logit_j for all i < j."""
        return self.layer.pairwise(self.inputs, self.box)


@dataclass(frozen=True, eq=False)
class Network:
    """What is certified of a model. Built by `Network.of`, which refuses whatever cannot be bounded."""

    model: nn.Module  # a copy of the user's, in evaluation mode
    prefix: Prefix
    layers: tuple[Layer, ...]
    parameters: Mapping[str, Tensor]  # initial values of all parameters behind the prefix
    trainable: tuple[str, ...]
    outputs: int
    block_rows: int  # most records to propagate at a time: a public number, like all shapes
    query_rows: int

    @classmethod
    def of(cls, model: nn.Module, record_shape: tuple[int, ...]) -> Network:
        """Split and check a model; `record_shape` is the shape of one record's features."""
        _refuse_parameters(model)
        leaves = list(_leaves(model))
        cut = next(i for i, (_, leaf) in enumerate(leaves) if _trains(leaf))
        behind = leaves[cut:]
        for name, leaf in behind:
            if type(leaf) not in LAYERS:
                supported = ", ".join(sorted(kind.__name__ for kind in LAYERS))
                raise UnsupportedModel(
                    f"layer {name!r} ({type(leaf).__name__}) cannot be bounded; supported: {supported}, in nested nn.Sequential; "
                    "any layer is allowed in front of the first trainable one, with requires_grad=False"
                )
        dtype = next(p.dtype for p in model.parameters() if p.requires_grad)
        model = copy.deepcopy(model).eval().to(dtype)
        prefix = Prefix(tuple((name, model.get_submodule(name)) for name, _ in leaves[:cut]), dtype)
        shapes = _shapes(model, prefix, [name for name, _ in behind], record_shape)
        layers, kind = [], Kind.POINT
        for (name, leaf), shape in zip(behind, shapes, strict=False):
            build = LAYERS[type(leaf)].build  # type: ignore[attr-defined]
            layers.append(build(name, leaf, kind, shape))
            kind = layers[-1].output_kind
        if len(shapes[-1]) != 1:
            raise UnsupportedModel(f"the model's output has shape {shapes[-1]} per record: expected one row of logits")
        names = {f"{name}.{key}" if name else key: p for name, leaf in behind for key, p in leaf.named_parameters()}
        pairs = shapes[-1][0] * (shapes[-1][0] - 1) // 2
        widest = max(pairs, *(_entries(layer, shape) for layer, shape in zip([*layers, None], shapes, strict=True)))
        rows = max(16, min(BLOCK, 2 ** ((_BLOCK_ENTRIES // widest).bit_length() - 1)))
        return cls(
            model=model,
            prefix=prefix,
            layers=tuple(layers),
            parameters={name: p.detach().clone() for name, p in names.items()},
            trainable=tuple(name for name, p in names.items() if p.requires_grad),
            outputs=shapes[-1][0],
            block_rows=rows,
            query_rows=min(rows, _QUERY_ROWS),
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.prefix.dtype

    @property
    def device(self) -> torch.device:
        return next(iter(self.parameters.values())).device

    def forward(self, features: Interval, box: Box) -> list[Interval]:
        """The inputs of every layer, from first to last."""
        inputs = [features]
        for layer in self.layers[:-1]:
            inputs.append(layer.forward(inputs[-1], box))
        return inputs

    def outputs_of(self, last: Interval, box: Box) -> Outputs:
        """What the last layer makes of its input."""
        return Outputs(self.layers[-1], last, box, self.outputs)

    def backward(self, inputs: list[Interval], box: Box, outgoing: Interval) -> Iterator[tuple[str, Gradient]]:
        """The gradients of all trainable parameters, layer by layer from the last, given the gradient at the logits."""
        for place in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[place]
            for name, gradient in layer.gradients(inputs[place], box, outgoing):
                if name in self.trainable:
                    yield name, gradient
            if place:
                outgoing = layer.backward(inputs[place], box, outgoing)

    def module(self, values: Mapping[str, Tensor]) -> nn.Module:
        """A copy of the model that carries the given parameter values."""
        model = copy.deepcopy(self.model)
        with torch.no_grad():
            for name, value in values.items():
                model.get_parameter(name).copy_(value)
        return model


def _trains(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


def _leaves(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The model's layers in order, nested Sequentials opened."""
    if type(module) is nn.Sequential:
        for key, child in module.named_children():
            yield from _leaves(child, f"{name}.{key}" if name else key)
    else:
        yield name, module


def _refuse_parameters(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"model is a {type(model).__name__}: expected a torch.nn.Module")
    if not _trains(model):
        raise UnsupportedModel("no parameter of the model has requires_grad=True: there is nothing to train")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            raise UnsupportedModel(f"parameter {name!r} is {parameter.dtype}: expected float32 or float64; call model.float()")
        if not bool(parameter.isfinite().all()):
            raise UnsupportedModel(f"parameter {name!r} holds NaN or infinite values: start from finite weights")
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if len({p.dtype for _, p in trained}) > 1:
        raise UnsupportedModel("trainable parameters mix float32 and float64: call model.float() or model.double()")
    named = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    if len(named) != len(list(model.named_parameters())):
        raise UnsupportedModel("two layers share a parameter: each parameter must belong to one layer")


def _shapes(model: nn.Module, prefix: Prefix, names: list[str], record_shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shape of one record before each layer, and after the last, found by sending two records of zeros through."""
    try:
        with torch.no_grad():
            record = torch.zeros(2, *record_shape, dtype=prefix.dtype, device=next(model.parameters()).device)
            shapes = [(record := prefix.module(record)).shape[1:]]
            for name in names:
                shapes.append((record := model.get_submodule(name)(record)).shape[1:])
    except RuntimeError as error:
        raise UnsupportedModel(f"the model does not take records of shape {record_shape}: {error}") from error
    return [tuple(shape) for shape in shapes]


def _entries(layer: Layer | None, shape: tuple[int, ...]) -> int:
    """How many numbers a layer needs for one record, patches included."""
    size = 1
    for side in shape:
        size *= side
    kernel = getattr(layer, "kernel", None)
    return size * kernel[0] * kernel[1] if kernel else size
