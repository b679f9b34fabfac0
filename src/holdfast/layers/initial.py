"""Initial models: models made by name, and `zero_output`, which makes untrained outputs 0.

Names are "linear-box", "mlp:100" or "mlp:100,50", or a function as "package.module:factory".
"""

from __future__ import annotations

import copy
import importlib
import re
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import InvalidInput, UnsupportedModel

EXPECTED = "expected linear (a head), linear-box, mlp:100, mlp:100,50, or package.module:factory"


def make_model(name: str, inputs: int, outputs: int, seed: int) -> nn.Module:
    """Return a new model; a factory is called as factory(inputs, outputs, seed)."""
    kind, _, rest = name.partition(":")
    if name == "linear-box":
        return _multilayer_perceptron([inputs, outputs], seed)
    if kind == "mlp":
        widths = rest.split(",")
        if not all(re.fullmatch("[1-9][0-9]{0,5}", width) for width in widths):
            raise InvalidInput(f"model {name!r}: {EXPECTED}")
        return _multilayer_perceptron([inputs, *map(int, widths), outputs], seed)
    return _from_factory(name, inputs, outputs, seed)


def _multilayer_perceptron(widths: list[int], seed: int) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for i in range(len(widths) - 1):
            layers += [nn.Linear(widths[i], widths[i + 1]), nn.ReLU()]
        return nn.Sequential(*layers[:-1])


def _from_factory(name: str, inputs: int, outputs: int, seed: int) -> nn.Module:
    module, _, factory = name.partition(":")
    if not module or not factory:
        raise InvalidInput(f"model {name!r}: {EXPECTED}")
    sys.path.insert(0, str(Path.cwd()))  # like `python -m`: factories in the working directory
    try:
        make = getattr(importlib.import_module(module), factory)
    except Exception as error:  # a user's module may raise anything
        raise InvalidInput(f"model {name!r}: cannot be imported ({error}); {EXPECTED}") from error
    finally:
        sys.path.pop(0)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            model = make(inputs, outputs, seed)
        except Exception as error:
            raise InvalidInput(
                f"model {name!r}: {factory}(inputs, outputs, seed) failed ({error})"
            ) from error
    if not isinstance(model, nn.Module):
        raise InvalidInput(
            f"model {name!r}: "
            f"the factory returned a {type(model).__name__}, expected a torch.nn.Module"
        )
    return model


def zero_output(model: nn.Module, *, active: float | None = None) -> nn.Module:
    """Return a copy of the model whose untrained output is exactly 0.

    The neurons of the last hidden layer come in pairs that cancel. Both neurons of a pair have the
    same input weights; their output weights have opposite signs and are powers of two, so that they
    cancel without rounding in the order in which holdfast adds (torch's own forward pass may differ
    from 0 in the last bit). The last bias is 0. If only the last layer has parameters, they are all
    set to 0.

    Args:
        model: A model that ends in a `torch.nn.Linear`.
        active: If given (L), every neuron of the last hidden layer is initially active on all of
            its inputs within [-L, L] (weights scaled down, bias 1), with output weights 1 and -1,
            so that every record contributes to the gradient of every neuron, and with the same
            weight. One step of a clipped gradient then learns more from every record, and
            certificates reach farther; the network starts where ReLU is linear.

    Returns:
        The copy.

    Raises:
        UnsupportedModel: If the model does not end in linear layers whose neurons can be paired.
        InvalidInput: If `active` is not a positive number.

    Example:
        >>> import holdfast as hf, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> bool(hf.zero_output(net)(torch.ones(1, 3)).abs().max() < 1e-6)
        True
    """
    if active is not None and not (
        isinstance(active, int | float)
        and not isinstance(active, bool)
        and 0 < active < float("inf")
    ):
        raise InvalidInput(
            f"active={active!r}: "
            "expected a positive finite number, the largest magnitude of an input"
        )
    model = copy.deepcopy(model)
    leaves = [module for module in model.modules() if not list(module.children())]
    linear = [i for i, leaf in enumerate(leaves) if isinstance(leaf, nn.Linear)]
    if not linear or linear[-1] != len(leaves) - 1:
        raise UnsupportedModel("zero_output: expected a model that ends in a torch.nn.Linear")
    last = leaves[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        if last.bias is not None:
            last.bias.zero_()
        if not any(list(leaf.parameters()) for leaf in leaves[:-1]):
            last.weight.zero_()
            return model
        hidden = _hidden_layer(leaves, linear, last)
        for parameter in (hidden.weight, hidden.bias):
            if parameter is not None:
                parameter[1::2] = parameter[0::2]
        weight = _power_of_two(last.weight[:, 0::2])
        if active is not None:
            _activate(hidden, float(active))
            weight = torch.where(weight < 0, -1.0, 1.0).to(weight)
        last.weight[:, 0::2], last.weight[:, 1::2] = weight, -weight
    return model


def _hidden_layer(leaves: list[nn.Module], linear: list[int], last: nn.Linear) -> nn.Linear:
    """Return the linear layer before the last one, whose neurons can be paired; or raise."""
    hidden = leaves[linear[-2]] if len(linear) > 1 else None
    between = leaves[linear[-2] + 1 : -1] if len(linear) > 1 else []
    if any(list(leaf.parameters()) or list(leaf.buffers()) for leaf in between):
        raise UnsupportedModel(
            "zero_output: expected only layers without parameters and buffers, such as an "
            "activation, between the last two torch.nn.Linear layers"
        )
    matching = isinstance(hidden, nn.Linear) and hidden.out_features == last.in_features
    if not matching or last.in_features % 2:
        raise UnsupportedModel(
            "zero_output: expected a torch.nn.Linear with an even number of neurons before "
            f"the last layer, which has {last.in_features} inputs"
        )
    assert isinstance(hidden, nn.Linear)
    return hidden


def _activate(hidden: nn.Linear, largest: float) -> None:
    """Set the bias to 1, and scale the weights down to contribute at most 0.5 in magnitude.

    The limit holds for inputs within [-largest, largest].
    """
    if hidden.bias is None:
        raise UnsupportedModel(
            "zero_output: active= needs a bias in the torch.nn.Linear before the last layer"
        )
    reach = float(hidden.weight.abs().sum(1).max()) * largest
    if reach > 0.5:
        hidden.weight *= 0.5 / reach
    hidden.bias.fill_(1.0)


def _power_of_two(weight: Tensor) -> Tensor:
    """Round the magnitude of each entry down to a power of two, keeping its sign."""
    return torch.where(
        weight == 0, weight, torch.sign(weight) * torch.exp2(torch.floor(torch.log2(weight.abs())))
    )
