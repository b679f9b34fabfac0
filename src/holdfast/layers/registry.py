"""The table of layers that can be bounded, and models as plain data for saved files.

A saved layer is its type and its options, so that a saved model needs no pickle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ..errors import UnsupportedModel
from .activations import LeakyReLU, ReLU, Sigmoid, Softplus, Tanh
from .affine import BatchNorm, Dense
from .base import Dropout, Flatten, Identity, Layer
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
