"""Network: a torch model split into a public frozen prefix and the layers that are bounded."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from ..errors import UnsupportedModel
from ..intervals import Interval, Kind
from ..kernels import BLOCK
from .base import Box, Gradient, Layer
from .normalisation import refuse_batch_statistics
from .prefix import Prefix, plainly
from .shapes import warn_of_dropout
from .table import LAYERS

_BLOCK_ENTRIES = 2**21  # numbers that the widest layer may hold for one block of records
_QUERY_ENTRIES = 2**17  # the same for queries: one query pays for a whole block, so blocks of queries are smaller


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
        dtype = next(p.dtype for p in model.parameters() if p.requires_grad)
        model = _own_copy(model, dtype)
        leaves = list(_leaves(model))
        cut = next(i for i, (_, leaf) in enumerate(leaves) if _trains(leaf))
        _refuse_layers(leaves, cut)
        model.eval()
        prefix = Prefix(tuple(leaves[:cut]), dtype, record_shape)
        behind = leaves[cut:]
        shapes = _shapes(prefix, behind)
        layers, kind = [], Kind.POINT
        for (name, leaf), shape in zip(behind, shapes, strict=False):
            build = LAYERS[type(leaf)].build  # type: ignore[attr-defined]
            layers.append(build(name, leaf, kind, shape))
            kind = layers[-1].output_kind
        if len(shapes[-1]) != 1:
            raise UnsupportedModel(f"the model's output has shape {shapes[-1]} per record: expected one row of logits")
        parameters = {f"{name}.{key}" if name else key: p for name, leaf in behind for key, p in leaf.named_parameters()}
        widest = _widest(layers, shapes)
        network = cls(
            model=model,
            prefix=prefix,
            layers=tuple(layers),
            parameters={name: p.detach().clone() for name, p in parameters.items()},
            trainable=tuple(name for name, p in parameters.items() if p.requires_grad),
            outputs=shapes[-1][0],
            block_rows=_rows(_BLOCK_ENTRIES, widest),
            query_rows=_rows(_QUERY_ENTRIES, widest),
        )
        _refuse_disagreement(network, shapes[0])
        return network

    @property
    def dtype(self) -> torch.dtype:
        return self.prefix.dtype

    @property
    def device(self) -> torch.device:
        return next(iter(self.parameters.values())).device

    def box(self, trained: Box) -> Box:
        """A box of the trained parameters, joined by the frozen ones behind the prefix as points."""
        frozen = {name: Interval.point(value) for name, value in self.parameters.items() if name not in self.trainable}
        return {**frozen, **trained}

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


def _own_copy(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy that nobody else can change. It keeps each layer's mode, which is checked next."""
    try:
        return copy.deepcopy(model).to(dtype)
    except Exception as error:
        raise UnsupportedModel(f"the model cannot be copied: {error}") from error


def _leaves(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The model's layers in order, nested Sequentials opened. A layer used twice comes twice."""
    if type(module) is nn.Sequential:
        for key, child in module._modules.items():
            assert child is not None
            yield from _leaves(child, f"{name}.{key}" if name else key)
    else:
        yield name, module


def _refuse_parameters(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"model is a {type(model).__name__}: expected a torch.nn.Module")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise UnsupportedModel("the model has lazy layers: send one batch through it first, so that they take their shape")
    if not _trains(model):
        raise UnsupportedModel("no parameter of the model has requires_grad=True: there is nothing to train")
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.requires_grad and value.dtype not in (torch.float32, torch.float64):
            raise UnsupportedModel(f"parameter {name!r} is {value.dtype}: expected float32 or float64; call model.float()")
        if not bool(value.isfinite().all()):
            raise UnsupportedModel(f"{name!r} holds NaN or infinite values: start from finite weights and statistics")
        if name.endswith("running_var") and bool((value < 0).any()):
            raise UnsupportedModel(f"{name!r} holds negative values: a variance cannot be negative")
    if len({p.dtype for p in model.parameters() if p.requires_grad}) > 1:
        raise UnsupportedModel("trainable parameters mix float32 and float64: call model.float() or model.double()")
    named = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    if len(named) != len(list(model.named_parameters())):
        raise UnsupportedModel("two layers share a parameter: each parameter must belong to one layer")


def _refuse_layers(leaves: list[tuple[str, nn.Module]], cut: int) -> None:
    """Refuse layers that cannot be bounded, and modes in which a record's output depends on other records."""
    supported = ", ".join(sorted(kind.__name__ for kind in LAYERS))
    for place, (name, leaf) in enumerate(leaves):
        for inner, module in leaf.named_modules(prefix=name):
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                refuse_batch_statistics(inner, module)
            if isinstance(module, nn.Dropout):
                warn_of_dropout(inner, module)
        if place >= cut and type(leaf) not in LAYERS:
            advice = "write the model as nn.Sequential" if not name else "layers before the first trainable one may be of any kind"
            raise UnsupportedModel(
                f"layer {name!r} ({type(leaf).__name__}) cannot be bounded; supported, in nested nn.Sequential: {supported}; {advice}"
            )


def _shapes(prefix: Prefix, behind: list[tuple[str, nn.Module]]) -> list[tuple[int, ...]]:
    """The shape of one record before each layer, and after the last, found by sending two records of zeros through."""
    try:
        with plainly():
            record = prefix.zeros(2)
            shapes = [tuple((record := prefix.module(record)).shape[1:])]
            for _, leaf in behind:
                shapes.append(tuple((record := leaf(record)).shape[1:]))
    except Exception as error:
        raise UnsupportedModel(f"the model does not take float records of shape {prefix.record_shape}: {error}") from error
    return shapes


def _widest(layers: list[Layer], shapes: list[tuple[int, ...]]) -> int:
    """Most numbers that any layer, or the differences of logits, need for one record."""
    pairs = shapes[-1][0] * (shapes[-1][0] - 1) // 2
    return max(pairs, *(_entries(layer, shape) for layer, shape in zip([*layers, None], shapes, strict=True)))


def _rows(entries: int, widest: int) -> int:
    """How many records to propagate at a time, from shapes alone: a power of two."""
    return min(BLOCK, 1 << max(0, (entries // widest).bit_length() - 1))


def _entries(layer: Layer | None, shape: tuple[int, ...]) -> int:
    """How many numbers a layer needs for one record, patches included."""
    kernel: tuple[int, int] = getattr(layer, "kernel", (1, 1))
    return math.prod(shape) * math.prod(kernel)


def _refuse_disagreement(network: Network, shape: tuple[int, ...]) -> None:
    """The rules must compute what the model computes: hooks and changed forward methods are not seen by them."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(network.query_rows, *shape, generator=generator, dtype=network.dtype).to(network.device)
    box = {name: Interval.point(value) for name, value in network.parameters.items()}
    with plainly():
        ours = network.outputs_of(network.forward(Interval.point(features), box)[-1], box).logits.lower
        theirs = features
        for layer in network.layers:
            theirs = network.model.get_submodule(layer.name)(theirs)
    if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max() + 1)):
        raise UnsupportedModel("the model computes something else than its layers say: remove hooks and changed forward methods")
