"""Splitting a torch model into a list of layers, and refusing models that cannot be bounded."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn

from ..errors import UnsupportedModel
from ..intervals import largest_parameter
from ..workers import no_grad_no_autocast
from .affine import refuse_batch_statistics
from .base import warn_of_dropout
from .registry import LAYERS


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
