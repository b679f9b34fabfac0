"""The table of layers that can be bounded; models as lists of layers and as plain data.

A saved layer is its type and its options, so that a saved model needs no pickle.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..errors import UnsupportedModel
from ..intervals import largest_parameter
from ..workers import no_grad_no_autocast
from .base import Dropout, Flatten, Identity, Layer, warn_of_dropout
from .dense import (
    BatchNorm,
    Dense,
    LeakyReLU,
    ReLU,
    Sigmoid,
    Softplus,
    Tanh,
    refuse_batch_statistics,
)
from .windows import AveragePool, Convolution

LAYERS: dict[type[nn.Module], type[Layer]] = {
    nn.Linear: Dense,
    nn.Conv2d: Convolution,
    nn.ReLU: ReLU,
    nn.LeakyReLU: LeakyReLU,
    nn.Tanh: Tanh,
    nn.Sigmoid: Sigmoid,
    nn.Softplus: Softplus,
    nn.Flatten: Flatten,
    nn.AvgPool2d: AveragePool,
    nn.AdaptiveAvgPool2d: AveragePool,
    nn.BatchNorm1d: BatchNorm,
    nn.BatchNorm2d: BatchNorm,
    nn.Identity: Identity,
    nn.Dropout: Dropout,
}


_OPTIONS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features", "bias"),
    nn.Conv2d: (
        "in_channels",
        "out_channels",
        "kernel_size",
        "stride",
        "padding",
        "dilation",
        "groups",
        "bias",
        "padding_mode",
    ),
    nn.ReLU: (),
    nn.LeakyReLU: ("negative_slope",),
    nn.Tanh: (),
    nn.Sigmoid: (),
    nn.Softplus: ("beta", "threshold"),
    nn.Flatten: ("start_dim", "end_dim"),
    nn.AvgPool2d: (
        "kernel_size",
        "stride",
        "padding",
        "ceil_mode",
        "count_include_pad",
        "divisor_override",
    ),
    nn.AdaptiveAvgPool2d: ("output_size",),
    nn.BatchNorm1d: ("num_features", "eps", "affine"),
    nn.BatchNorm2d: ("num_features", "eps", "affine"),
    nn.Identity: (),
    nn.Dropout: ("p",),
}
_TYPES = {kind.__name__: kind for kind in _OPTIONS}


def describable(module: nn.Module) -> bool:
    """Return whether a layer can be described by its type and options."""
    return type(module) in _OPTIONS


def describe(name: str, module: nn.Module) -> dict[str, Any]:
    """Return a layer as plain data."""
    options = {option: getattr(module, option) for option in _OPTIONS[type(module)]}
    if "bias" in options:
        options["bias"] = options["bias"] is not None
    return {"name": name, "type": type(module).__name__, "options": options}


def rebuild(descriptions: Sequence[Mapping[str, Any]]) -> nn.Module:
    """Return the model with the described layers, nested according to their names."""
    layers = {about["name"]: _build_layer(about) for about in descriptions}
    return layers[""] if "" in layers else nest(layers)


def nest(layers: Mapping[str, nn.Module]) -> nn.Sequential:
    """Return the layers in nested Sequentials, according to their dotted names."""
    root = nn.Sequential()
    for name, layer in layers.items():
        *path, last = name.split(".")
        parent = root
        for step in path:
            if step not in parent._modules:
                parent.add_module(step, nn.Sequential())
            parent = parent.get_submodule(step)  # type: ignore[assignment]
        parent.add_module(last, layer)
    return root


def _build_layer(about: Mapping[str, Any]) -> nn.Module:
    if about["type"] not in _TYPES:
        raise UnsupportedModel(
            f"the saved model has a layer of type {about['type']!r}, which this version of "
            "holdfast does not support; install the version that wrote it"
        )
    options = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in about["options"].items()
    }
    return _TYPES[about["type"]](**options)


def is_trainable(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


def own_copy(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a deep copy of the model in `dtype`, which no other code can change.

    Each layer's training mode is kept, because `refuse_layers` checks it.
    """
    try:
        return copy.deepcopy(model).to(dtype)
    except Exception as error:
        raise UnsupportedModel(f"the model cannot be copied: {error}") from error


def leaf_layers(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the model's layers in order, with nested Sequentials expanded.

    A layer that is used twice appears twice.
    """
    if type(module) is nn.Sequential:
        for key, child in module._modules.items():
            assert child is not None
            yield from leaf_layers(child, f"{name}.{key}" if name else key)
    else:
        yield name, module


def refuse_parameters(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"model is a {type(model).__name__}: expected a torch.nn.Module")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise UnsupportedModel(
            "the model has lazy layers: run it on one batch first, which initialises them"
        )
    if not is_trainable(model):
        raise UnsupportedModel(
            "no parameter of the model has requires_grad=True: there is nothing to train"
        )
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.requires_grad and value.dtype not in (torch.float32, torch.float64):
            raise UnsupportedModel(
                f"parameter {name!r} is {value.dtype}: expected float32 or float64; "
                "call model.float()"
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


def refuse_layers(leaves: list[tuple[str, nn.Module]], cut: int) -> None:
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


def record_shapes(
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
