"""Models by name: linear, mlp:100 or mlp:100,50, or a function package.module:factory."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import torch
from torch import nn

from ..errors import InvalidInput

EXPECTED = "expected linear, mlp:100, mlp:100,50, or package.module:factory"


def make_model(name: str, inputs: int, outputs: int, seed: int) -> nn.Module:
    """A fresh model. A factory is called as factory(inputs, outputs, seed)."""
    kind, _, rest = name.partition(":")
    if name == "linear":
        return _layers([inputs, outputs], seed)
    if kind == "mlp":
        widths = rest.split(",")
        if not all(re.fullmatch("[1-9][0-9]{0,5}", width) for width in widths):
            raise InvalidInput(f"model {name!r}: {EXPECTED}")
        return _layers([inputs, *map(int, widths), outputs], seed)
    return _made(name, inputs, outputs, seed)


def _layers(widths: list[int], seed: int) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for i in range(len(widths) - 1):
            layers += [nn.Linear(widths[i], widths[i + 1]), nn.ReLU()]
        return nn.Sequential(*layers[:-1])


def _made(name: str, inputs: int, outputs: int, seed: int) -> nn.Module:
    module, _, factory = name.partition(":")
    if not module or not factory:
        raise InvalidInput(f"model {name!r}: {EXPECTED}")
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does: a factory in a file beside the data
    try:
        make = getattr(importlib.import_module(module), factory)
    except Exception as error:  # whatever a user's module raises
        raise InvalidInput(f"model {name!r}: cannot be imported ({error}); {EXPECTED}") from error
    finally:
        sys.path.pop(0)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            model = make(inputs, outputs, seed)
        except Exception as error:
            raise InvalidInput(f"model {name!r}: {factory}(inputs, outputs, seed) failed ({error})") from error
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model {name!r}: the factory returned a {type(model).__name__}, expected a torch.nn.Module")
    return model
