"""The public front of a model: frozen layers of any kind, before the first that is trained.

Layers that holdfast knows are computed by its own rules. All others are the user's code, and may use
any library: what a library computes for one row of a batch can depend on the row's position, on the
number of rows and on memory addresses. So each record goes through them in a batch of its own, copied
into one aligned buffer, one record after the other on one thread (two threads would share what the module
keeps for itself, such as what a hook stored), and buffers that a record changed are set back before the
next. Nothing but the record and the public weights is left to matter, as long as the module keeps nothing
else from one call to the next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor, nn

from ..errors import UnsupportedModel
from ..intervals import Interval, Kind
from ..progress import Watch
from ..workers import no_grad_no_autocast, workers
from .base import Layer
from .table import LAYERS

_CHUNK = 64  # records per task of a worker
_PROBES = 4
_ALIGNMENT = 64  # bytes


@dataclass(frozen=True, eq=False)
class Front:
    """Frozen leading layers. A record's features are what they give for it.

    Guarantees:
        A record's features depend on that record and on the layers alone.
    """

    layers: tuple[tuple[str, nn.Module], ...]
    rules: tuple[Layer | None, ...]  # None: the layer is the user's code
    shapes: tuple[tuple[int, ...], ...]  # of one record before each layer
    record_shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, layers: list[tuple[str, nn.Module]], shapes: list[tuple[int, ...]], dtype: torch.dtype) -> Front:
        """Make a front of frozen layers; refuses layers that give a record different features the second time."""
        before = tuple(shapes[: len(layers)])
        rules = tuple(_rule(name, module, shape) for (name, module), shape in zip(layers, before, strict=True))
        front = cls(tuple(layers), rules, before, shapes[0], dtype)
        if front.foreign and not front.gives(front.probe()):
            raise UnsupportedModel("the frozen layers give the same records different features the second time: remove what is random")
        return front

    @property
    def foreign(self) -> bool:
        """Whether some layer is not computed by rules of ours."""
        return None in self.rules

    def __call__(self, x: Tensor, watch: Watch | None = None) -> Tensor:
        """Return the features of the records `x`; those of a record that overflows are infinite or NaN."""
        if not self.layers or not len(x):
            return x
        with workers() as pool:
            parts = []
            for part in pool.map(self._features, torch.split(x, _CHUNK)):
                parts.append(part)
                if watch is not None:
                    watch(len(part))
        return torch.cat(parts)

    def probe(self) -> Tensor:
        """Return the features of a few public random records: what two fronts are compared by."""
        records = torch.randn(_PROBES, *self.record_shape, generator=torch.Generator().manual_seed(0), dtype=self.dtype)
        return self(records)

    def gives(self, probed: Tensor) -> bool:
        """Whether `probe` returns just these features here. A check of identity, and no proof of anything else."""
        here = self.probe()
        return here.shape == probed.shape and bool(((here == probed) | (here.isnan() & probed.isnan())).all())

    def _features(self, records: Tensor) -> Tensor:
        with no_grad_no_autocast():
            features = records.to(self.dtype)
            for segment in self._segments:
                features = segment(features)
            return features.to(records.device)

    @cached_property
    def _segments(self) -> tuple[Callable[[Tensor], Tensor], ...]:
        """Runs of layers that holdfast knows, and runs of others, in turn."""
        runs = groupby(range(len(self.layers)), lambda place: self.rules[place] is None)
        return tuple(self._segment(foreign, list(places)) for foreign, places in runs)

    def _segment(self, foreign: bool, places: list[int]) -> Callable[[Tensor], Tensor]:
        modules = [self.layers[place][1] for place in places]
        if foreign:
            return _OneByOne(nn.Sequential(*modules).eval(), self.shapes[places[0]], self.dtype)
        rules = [rule for place in places if (rule := self.rules[place]) is not None]
        return _Rules(tuple(zip(rules, modules, strict=True)))


def _rule(name: str, module: nn.Module, shape: tuple[int, ...]) -> Layer | None:
    """The rule for a layer, if there is one for its type and options."""
    if type(module) not in LAYERS:
        return None
    try:
        rule: Layer = LAYERS[type(module)].build(name, module, Kind.POINT, shape)  # type: ignore[attr-defined]
    except UnsupportedModel:
        return None
    return rule


@dataclass(frozen=True, eq=False)
class _Rules:
    """Layers that are computed by holdfast's own rules, each on points."""

    layers: tuple[tuple[Layer, nn.Module], ...]

    def __call__(self, features: Tensor) -> Tensor:
        passed = Interval.point(features)
        for layer, module in self.layers:
            box = {layer.parameter(name): Interval.point(value.detach()) for name, value in module.named_parameters()}
            passed = Interval.point(layer.forward(passed, box).lower)
        return passed.lower


class _OneByOne:
    """Layers of the user's: one record at a time, from one aligned buffer, in one thread at a time.

    Guarantees:
        No record sees what another one left in the buffer that it is copied into or in the module's own
        buffers. Whatever else the module keeps between two calls is assumed not to matter.
    """

    def __init__(self, module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._module, self._dtype = module, dtype
        self._lock = threading.Lock()
        self._device = next((value.device for value in module.state_dict().values()), torch.device("cpu"))
        self._record = aligned_buffer((1, *shape), dtype)
        self._buffers = [
            (part, name, value.clone()) for part in module.modules() for name, value in part._buffers.items() if value is not None
        ]

    def __call__(self, records: Tensor) -> Tensor:
        return torch.cat([self._one(record) for record in records])

    def _one(self, record: Tensor) -> Tensor:
        with self._lock:
            self._record[0] = record
            for part, name, value in self._buffers:  # an observer in evaluation mode still observes
                part._buffers[name] = value.clone()
            features: Tensor = self._module(self._record.to(self._device))
            return features.to(record.device, self._dtype).clone()  # the module may return the buffer itself


def aligned_buffer(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros whose first number lies at a multiple of 64 bytes, in a memory block of its own."""
    size = dtype.itemsize
    numbers = torch.zeros(torch.Size(shape).numel() + _ALIGNMENT // size, dtype=dtype)
    offset = -(numbers.data_ptr() // size) % (_ALIGNMENT // size)
    return numbers[offset : offset + torch.Size(shape).numel()].view(shape)
