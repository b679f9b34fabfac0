"""What a module of the user's keeps from one call to the next, and how it forgets it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_TABLES = ("_parameters", "_buffers", "_modules")


class Memory:
    """The state of modules as it was when this was made: attributes, parameters and buffers.

    Guarantees:
        After `restore`, every attribute of every module is the object that it was, and every parameter and
        buffer that was changed in place has its values back. Not seen: changes in place of other objects
        (a list that grows), of state outside the modules, and of `tensor.data`, which torch does not count.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        parts = {id(part): part for module in modules for part in module.modules()}.values()
        self._attributes = [(part.__dict__, dict(part.__dict__)) for part in parts]
        tables = [table for part in parts for name in _TABLES if isinstance(table := part.__dict__.get(name), dict)]
        self._attributes += [(table, dict(table)) for table in tables]
        tensors = {id(value): value for _, saved in self._attributes for value in saved.values() if isinstance(value, Tensor)}
        self._tensors = [_Kept(tensor) for tensor in tensors.values()]

    def restore(self) -> None:
        """Forget what was kept since."""
        for current, saved in self._attributes:
            if not _same(current, saved):
                current.clear()
                current.update(saved)
        for kept in self._tensors:
            kept.restore()


class _Kept:
    """A tensor and its values."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._values, self._version = tensor, tensor.detach().clone(), tensor._version

    def restore(self) -> None:
        if self._tensor._version != self._version:
            with torch.no_grad():
                self._tensor.copy_(self._values)
            self._version = self._tensor._version


def _same(current: dict[str, Any], saved: dict[str, Any]) -> bool:
    return current.keys() == saved.keys() and all(current[name] is value for name, value in saved.items())
