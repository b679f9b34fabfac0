"""ParameterBounds: the box that holds every model training could have produced at one distance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import InvalidInput, UnsoundBounds
from ..intervals import Interval, largest_parameter


@dataclass(frozen=True, eq=False)
class ParameterBounds:
    """Bounds on every trained parameter, for all data sets at most `distance` moves away."""

    distance: int
    box: Mapping[str, Interval]

    outgrown: bool = field(init=False)
    """Whether a parameter has reached the end of the float range: such a box certifies nothing. Boxes nest, so all that
    enclose an outgrown one are outgrown too. Computed at once: the time of a query must not tell which boxes were looked at before."""

    def __post_init__(self) -> None:
        outgrown = False
        for name, interval in self.box.items():
            limit = largest_parameter(interval.lower.dtype)
            if not bool(((interval.lower >= -limit) & (interval.upper <= limit)).all()):
                raise UnsoundBounds(f"the box of {name!r} at distance {self.distance} holds NaN or infinite ends: it bounds nothing")
            outgrown = outgrown or not bool(((interval.lower > -limit) & (interval.upper < limit)).all())
        object.__setattr__(self, "outgrown", outgrown)

    @property
    def lower(self) -> dict[str, Tensor]:
        """Copies of the lower ends."""
        return {name: interval.lower.clone() for name, interval in self.box.items()}

    @property
    def upper(self) -> dict[str, Tensor]:
        """Copies of the upper ends."""
        return {name: interval.upper.clone() for name, interval in self.box.items()}

    def contains(self, state: Mapping[str, Tensor]) -> bool:
        """Whether a model's parameters (its state_dict, or other bounds' ends) all lie inside, with no slack."""
        missing = sorted(set(self.box) - set(state))
        if missing:
            raise InvalidInput(f"the state has no parameter {missing[0]!r}: expected {sorted(self.box)}")
        for name, interval in self.box.items():
            value = torch.as_tensor(state[name])
            if value.shape != interval.shape:
                raise InvalidInput(f"parameter {name!r} has shape {tuple(value.shape)}: expected {tuple(interval.shape)}")
            if not bool(((interval.lower <= value) & (value <= interval.upper)).all()):
                return False
        return True

    def encloses(self, other: ParameterBounds) -> bool:
        """Whether the other box lies inside this one, with no slack."""
        return self.contains(other.lower) and self.contains(other.upper)


def nominal(bounds: ParameterBounds) -> dict[str, Tensor]:
    """The parameters of the one model in the box of distance 0."""
    for name, interval in bounds.box.items():
        if not torch.equal(interval.lower, interval.upper):
            raise UnsoundBounds(f"the box of {name!r} at distance {bounds.distance} holds more than one model: nothing can be certified")
    return bounds.lower
