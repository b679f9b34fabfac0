"""ParameterBounds: a box that contains every model training could have produced at one distance."""

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

    at_float_limit: bool = field(init=False)
    """Whether a parameter has reached the end of the float range; such a box certifies nothing.

    Boxes nest, so every box that encloses an outgrown one is outgrown too. The value is computed at
    construction because the time of a query must not reveal which boxes were inspected before.
    """

    def __post_init__(self) -> None:
        at_float_limit = False
        for name, interval in self.box.items():
            limit = largest_parameter(interval.lower.dtype)
            if not bool(((interval.lower >= -limit) & (interval.upper <= limit)).all()):
                raise UnsoundBounds(
                    f"the box of {name!r} at distance {self.distance} holds NaN or infinite "
                    "ends: it bounds nothing"
                )
            at_float_limit = at_float_limit or not bool(
                ((interval.lower > -limit) & (interval.upper < limit)).all()
            )
        object.__setattr__(self, "at_float_limit", at_float_limit)

    @property
    def lower(self) -> dict[str, Tensor]:
        """Return copies of the lower ends, by parameter name."""
        return {name: interval.lower.clone() for name, interval in self.box.items()}

    @property
    def upper(self) -> dict[str, Tensor]:
        """Return copies of the upper ends, by parameter name."""
        return {name: interval.upper.clone() for name, interval in self.box.items()}

    def contains(self, state: Mapping[str, Tensor]) -> bool:
        """Return whether all parameters of a model lie inside the box, with no slack.

        Args:
            state: The parameters by name, such as a state_dict.

        Raises:
            InvalidInput: If a parameter is missing or has another shape.
        """
        missing = sorted(set(self.box) - set(state))
        if missing:
            raise InvalidInput(
                f"the state has no parameter {missing[0]!r}: expected {sorted(self.box)}"
            )
        for name, interval in self.box.items():
            value = torch.as_tensor(state[name])
            if value.shape != interval.shape:
                raise InvalidInput(
                    f"parameter {name!r} has shape {tuple(value.shape)}: "
                    f"expected {tuple(interval.shape)}"
                )
            if not bool(((interval.lower <= value) & (value <= interval.upper)).all()):
                return False
        return True

    def encloses(self, other: ParameterBounds) -> bool:
        """Return whether the other box lies inside this one, with no slack."""
        return self.contains(other.lower) and self.contains(other.upper)


def nominal_parameters(bounds: ParameterBounds) -> dict[str, Tensor]:
    """Return the parameters of the single model in the box of distance 0."""
    for name, interval in bounds.box.items():
        if not torch.equal(interval.lower, interval.upper):
            raise UnsoundBounds(
                f"the box of {name!r} at distance {bounds.distance} holds more than one model: "
                "nothing can be certified"
            )
    return bounds.lower
