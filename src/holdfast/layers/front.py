"""Front: the frozen, public layers of any kind before the first layer that is trained.

If holdfast has rules for all of them, they are computed by these rules. Otherwise some are user
code and may use any library: what a library computes for one row of a batch can depend on the row's
position, the number of rows and memory addresses. Each record then passes through the whole front
in a batch of its own, one record after the other on one thread (two threads would share what a
module stores, for example in a hook). Each user layer reads the record from an aligned buffer, and
state of the layers that a record has changed is restored before the next record. So the features
depend only on the record and the public weights.
"""

from __future__ import annotations

import copy
import operator
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UnsupportedModel
from ..intervals import Interval, OperandKind
from ..workers import ProgressCallback, no_grad_no_autocast, workers
from .base import Layer
from .registry import LAYERS, leaf_layers, own_copy, record_shapes


class ModuleSnapshot:
    """The state of modules at construction: attributes, containers, parameters and buffers.

    Guarantees:
        After `restore`, every attribute of every module is the original object; every list,
        dictionary, set and deque among them, also inside another or a tuple, holds its original
        objects; and every parameter and buffer that was changed in place has its original values.
        Not detected: in-place changes of other objects (such as NumPy arrays, bytearrays and
        objects of the user's classes), of state outside the modules, and through `tensor.data`,
        which torch's version counter does not record.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        parts = {id(part): part for module in modules for part in module.modules()}.values()
        containers: dict[int, _ContainerSnapshot] = {}
        waiting: list[Any] = [part.__dict__ for part in parts]
        tensors: dict[int, Tensor] = {}
        while waiting:
            value = waiting.pop()
            if isinstance(value, Tensor):
                tensors[id(value)] = value
            elif isinstance(value, nn.Module):  # kept where `modules` does not look
                waiting.extend([] if id(value.__dict__) in containers else [value.__dict__])
            elif isinstance(value, tuple | frozenset):
                waiting.extend(value)
            elif isinstance(value, list | dict | set | deque) and id(value) not in containers:
                containers[id(value)] = _ContainerSnapshot(value)
                waiting.extend(value.values() if isinstance(value, dict) else value)
        self._containers = list(containers.values())
        self._tensors = [_TensorSnapshot(tensor) for tensor in tensors.values()]

    def restore(self) -> None:
        """Restore the state at construction."""
        for container in self._containers:
            container.restore()
        for kept in self._tensors:
            kept.restore()


class _ContainerSnapshot:
    """A list, dictionary, set or deque, and the objects that it holds."""

    def __init__(self, container: Any) -> None:
        self._container = container
        self._saved: Any = dict(container) if isinstance(container, dict) else list(container)

    def restore(self) -> None:
        current, saved = self._container, self._saved
        if len(current) == len(saved) and all(map(operator.is_, current, saved)):
            if not isinstance(current, dict):
                return
            if all(map(operator.is_, current.values(), saved.values())):
                return
        current.clear()
        if isinstance(current, dict | set):
            current.update(saved)
        else:
            current.extend(saved)


class _TensorSnapshot:
    """A tensor and a copy of its values."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._values, self._version = tensor, tensor.detach().clone(), tensor._version

    def restore(self) -> None:
        if self._tensor._version != self._version:
            with torch.no_grad():
                self._tensor.copy_(self._values)
            self._version = self._tensor._version


_CHUNK = 64  # records per worker task
_PROBES = 4
_ALIGNMENT = 64  # bytes


@dataclass(frozen=True, eq=False)
class Front:
    """The frozen leading layers, which map each record to its features.

    Guarantees:
        A record's features depend only on that record and on the layers.
    """

    layers: tuple[tuple[str, nn.Module], ...]
    rules: tuple[Layer | None, ...]  # None if the layer is user code
    shapes: tuple[tuple[int, ...], ...]  # of one record, before each layer and after the last
    dtype: torch.dtype
    # Copies of user layers that no record has passed; the modules in `layers` may keep records.
    unused: tuple[tuple[str, nn.Module], ...] = ()

    @classmethod
    def of(
        cls, layers: list[tuple[str, nn.Module]], shapes: list[tuple[int, ...]], dtype: torch.dtype
    ) -> Front:
        """Build a front from frozen layers.

        Raises if they give the same records different features the second time.
        """
        rules = tuple(
            _rule(name, module, shape)
            for (name, module), shape in zip(layers, shapes, strict=False)
        )
        unused = tuple(copy.deepcopy(layers)) if None in rules else tuple(layers)
        front = cls(tuple(layers), rules, tuple(shapes[: len(layers) + 1]), dtype, unused)
        if front.has_user_layers and not front.matches_probe(front.probe_features()):
            raise UnsupportedModel(
                "the frozen layers give the same records different features the second time: "
                "remove what is random"
            )
        return front

    @classmethod
    def of_module(cls, what: str, module: Any, record_shape: tuple[int, ...]) -> Front:
        """Build a front from a copy of a public module, frozen and in evaluation mode.

        Raises:
            UnsupportedModel: If it is not a module that maps such records, in float32 or float64,
                to numbers that depend on one record alone.
        """
        if not isinstance(module, nn.Module):
            raise UnsupportedModel(
                f"{what} is a {type(module).__name__}: expected a torch.nn.Module"
            )
        kinds = {p.dtype for p in module.parameters() if p.is_floating_point()}
        dtype = torch.float32 if torch.float32 in kinds else torch.float64
        frozen = own_copy(module, dtype).requires_grad_(False).eval()
        leaves = list(leaf_layers(frozen))
        shapes = record_shapes(leaves, record_shape, dtype, torch.device("cpu"))
        return cls.of(leaves, shapes, dtype)

    def __getstate__(self) -> dict[str, Any]:
        # The modules that records have passed, and their buffers, stay here.
        state = {name: value for name, value in self.__dict__.items() if name != "_run"}
        return {**state, "layers": copy.deepcopy(self.unused)}

    def without_history(self) -> Front:
        """Return the same front with layers that no record has passed."""
        return replace(self, layers=tuple(copy.deepcopy(self.unused)))

    @property
    def record_shape(self) -> tuple[int, ...]:
        """The shape of one record."""
        return self.shapes[0]

    @property
    def has_user_layers(self) -> bool:
        """Whether some layer is user code that is not computed by holdfast's rules."""
        return None in self.rules

    def __call__(self, x: Tensor, on_progress: ProgressCallback | None = None) -> Tensor:
        """Return the features of the records `x`.

        The features of a record that overflows are infinite or NaN.
        """
        if not self.layers or not len(x):
            return x
        with workers() as pool:
            parts = []
            for part in pool.map(self._features, torch.split(x, _CHUNK)):
                parts.append(part)
                if on_progress is not None:
                    on_progress(len(part))
        return torch.cat(parts)

    def probe_features(self) -> Tensor:
        """Return the features of a few public random records, for comparing two fronts."""
        return self(self.probe_records())

    def probe_records(self) -> Tensor:
        """Return a few public random records."""
        return torch.randn(
            _PROBES,
            *self.record_shape,
            generator=torch.Generator().manual_seed(0),
            dtype=self.dtype,
        )

    def matches_probe(self, probed: Tensor) -> bool:
        """Return whether this front gives the probe records exactly these features.

        This compares two fronts for identity; it proves nothing else.
        """
        here = self(self.probe_records().flip(0)).flip(0)
        return here.shape == probed.shape and bool(
            ((here == probed) | (here.isnan() & probed.isnan())).all()
        )

    def _features(self, records: Tensor) -> Tensor:
        with no_grad_no_autocast():
            return self._run(records.to(self.dtype)).to(records.device)

    @cached_property
    def _run(self) -> Callable[[Tensor], Tensor]:
        if self.has_user_layers:
            return _RecordByRecord(self)
        return _RuleLayers(
            [
                (rule, module)
                for rule, (_, module) in zip(self.rules, self.layers, strict=True)
                if rule is not None
            ]
        )


def _rule(name: str, module: nn.Module, shape: tuple[int, ...]) -> Layer | None:
    """Return the rule for a layer, if there is one for its type and options."""
    if type(module) not in LAYERS:
        return None
    try:
        family: Any = LAYERS[type(module)]
        rule: Layer = family.build(name, module, OperandKind.POINT, shape)
    except UnsupportedModel:
        return None
    return rule


@dataclass(frozen=True, eq=False)
class _RuleLayers:
    """Layers computed by holdfast's own rules, on points."""

    layers: Sequence[tuple[Layer, nn.Module]]

    def __call__(self, features: Tensor) -> Tensor:
        passed = Interval.point(features)
        for layer, module in self.layers:
            box = {
                layer.parameter(name): Interval.point(value.detach())
                for name, value in module.named_parameters()
            }
            passed = Interval.point(layer.forward(passed, box).lower)
        return passed.lower


class _RecordByRecord:
    """A front with user layers: one record at a time through all layers, in one thread at a time.

    Guarantees:
        A record's features do not depend on what earlier records left in the input buffers or, as
        far as `ModuleSnapshot` restores it, in the layers. Each record gives one row of features.
    """

    def __init__(self, front: Front) -> None:
        self._lock = threading.Lock()
        self._dtype, self._shapes = front.dtype, front.shapes
        self._steps: list[_RuleLayers | _UserLayer] = []
        for (_, module), rule, shape in zip(front.layers, front.rules, front.shapes, strict=False):
            self._steps.append(
                _UserLayer(module, shape, front.dtype)
                if rule is None
                else _RuleLayers([(rule, module)])
            )
        self._memory = ModuleSnapshot(
            step.module for step in self._steps if isinstance(step, _UserLayer)
        )

    def __call__(self, records: Tensor) -> Tensor:
        try:
            return torch.cat([self._features_of(record) for record in records])
        finally:
            self._forget()

    def _forget(self) -> None:
        """Remove what the last record left in buffers and, as far as it is known, in the layers."""
        with self._lock:
            self._memory.restore()
            for step in self._steps:
                if isinstance(step, _UserLayer):
                    step.forget()

    def _features_of(self, record: Tensor) -> Tensor:
        with self._lock:
            self._memory.restore()
            features = record[None]
            for step, shape in zip(self._steps, self._shapes[1:], strict=True):
                features = step(features)
                if tuple(features.shape) != (1, *shape):
                    raise UnsupportedModel(
                        "the frozen layers turned a record into shape "
                        f"{tuple(features.shape)}: expected {(1, *shape)}, "
                        "one row per record and the same shape for every record"
                    )
            return features


class _UserLayer:
    """A user layer, which reads each record from one aligned buffer."""

    def __init__(self, module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.module = module.eval()
        self._device = next(
            (value.device for value in module.state_dict().values()), torch.device("cpu")
        )
        self._input = aligned_buffer((1, *shape), dtype)

    def forget(self) -> None:
        self._input.zero_()

    def __call__(self, features: Tensor) -> Tensor:
        self._input.copy_(features)
        output: Tensor = self.module(self._input.to(self._device))
        # Copy the output, because the module may return the input buffer itself.
        return output.to("cpu", self._input.dtype).clone()


def aligned_buffer(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros in a memory block of their own, starting at a multiple of 64 bytes."""
    size = dtype.itemsize
    numbers = torch.zeros(torch.Size(shape).numel() + _ALIGNMENT // size, dtype=dtype)
    offset = -(numbers.data_ptr() // size) % (_ALIGNMENT // size)
    return numbers[offset : offset + torch.Size(shape).numel()].view(shape)
