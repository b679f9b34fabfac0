"""Network: a torch model split into a public frozen front and the layers that are bounded."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from ..errors import UnsupportedModel
from ..intervals import Interval, OperandKind, largest_parameter
from ..kernels import MAX_BLOCK_RECORDS
from ..workers import no_grad_no_autocast
from .affine import refuse_batch_statistics
from .base import Box, Gradient, Layer, warn_of_dropout
from .front import Front
from .registry import LAYERS

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
        _refuse_parameters(model)
        dtype = next(p.dtype for p in model.parameters() if p.requires_grad)
        model = _own_copy(model, dtype)
        leaves = list(_leaves(model))
        cut = next(i for i, (_, leaf) in enumerate(leaves) if _is_trainable(leaf))
        _refuse_layers(leaves, cut)
        model.eval()
        shapes = _shapes(leaves, record_shape, dtype, _device(model))
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


def _is_trainable(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


def _own_copy(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy that nobody else can change.

    It keeps each layer's mode, which is checked next.
    """
    try:
        return copy.deepcopy(model).to(dtype)
    except Exception as error:
        raise UnsupportedModel(f"the model cannot be copied: {error}") from error


def _leaves(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the model's layers in order, with nested Sequentials expanded.

    A layer that is used twice appears twice.
    """
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
        raise UnsupportedModel(
            "the model has lazy layers: run it on one batch first, which initialises them"
        )
    if not _is_trainable(model):
        raise UnsupportedModel(
            "no parameter of the model has requires_grad=True: there is nothing to train"
        )
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.requires_grad and value.dtype not in (torch.float32, torch.float64):
            raise UnsupportedModel(
                f"parameter {name!r} is {value.dtype}: expected float32 or float64; call "
                "model.float()"
            )
        if value.is_floating_point() and not bool(
            (value.abs() <= largest_parameter(value.dtype)).all()
        ):
            raise UnsupportedModel(
                f"{name!r} holds NaN, infinite or extremely large values: expected at most "
                f"{largest_parameter(value.dtype):.2g} in magnitude; reinitialise the model"
            )
        if name.endswith("running_var") and bool((value < 0).any()):
            raise UnsupportedModel(f"{name!r} holds negative values: a variance cannot be negative")
    if len({p.dtype for p in model.parameters() if p.requires_grad}) > 1:
        raise UnsupportedModel(
            "trainable parameters mix float32 and float64: call model.float() or model.double()"
        )
    named = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    if len(named) != len(list(model.named_parameters())):
        raise UnsupportedModel(
            "two layers share a parameter: each parameter must belong to one layer"
        )


def _refuse_layers(leaves: list[tuple[str, nn.Module]], cut: int) -> None:
    """Raise for layers that cannot be bounded, or whose outputs depend on other records.

    Also warn of dropout layers.
    """
    supported = ", ".join(sorted(kind.__name__ for kind in LAYERS))
    for place, (name, leaf) in enumerate(leaves):
        for inner, module in leaf.named_modules(prefix=name):
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                refuse_batch_statistics(inner, module)
            if isinstance(module, nn.Dropout):
                warn_of_dropout(inner, module)
        if place >= cut and type(leaf) not in LAYERS:
            advice = (
                "write the model as nn.Sequential"
                if not name
                else "layers before the first trainable one may be of any kind"
            )
            raise UnsupportedModel(
                f"layer {name!r} ({type(leaf).__name__}) cannot be bounded; supported, in nested "
                f"nn.Sequential: {supported}; {advice}"
            )


def _device(model: nn.Module) -> torch.device:
    return next(p.device for p in model.parameters())


def _shapes(
    leaves: list[tuple[str, nn.Module]],
    record_shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> list[tuple[int, ...]]:
    """Return the shape of one record before each layer, and after the last.

    The shapes are found by running the layers on two records of zeros.
    """
    record = torch.zeros(2, *record_shape, dtype=dtype, device=device)
    shapes = [record_shape]
    try:
        with no_grad_no_autocast():
            for _, leaf in leaves:
                shapes.append(tuple((record := leaf(record)).shape[1:]))
    except Exception as error:
        raise UnsupportedModel(
            f"the model does not take float records of shape {record_shape}: {error}"
        ) from error
    return shapes


def _layers(leaves: list[tuple[str, nn.Module]], shapes: list[tuple[int, ...]]) -> list[Layer]:
    layers: list[Layer] = []
    for (name, leaf), shape in zip(leaves, shapes, strict=False):
        kind = layers[-1].output_kind if layers else OperandKind.POINT
        layers.append(LAYERS[type(leaf)].build(name, leaf, kind, shape))  # type: ignore[attr-defined]
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
    """Raise if the rules compute something else than the model.

    The rules do not see hooks and overridden forward methods.
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
            "the model's outputs differ from those of its layers: remove hooks and overridden "
            "forward methods"
        )
