"""Boxes of parameters: bounds, sums of gradients over a box, and one step of SGD on boxes.

torch's update is linear with public coefficients. With gradient g, weight decay l, momentum m,
dampening d and learning rate a:

    buffer' = kept * buffer + taken * (g + l * theta)
    theta'  = (1 - a*l*c) * theta - a * (c * g + e * buffer)

    kept, taken = 0, 1     on the first step, else m, 1 - d
    c, e        = 1, 0     without momentum
                  taken, kept            with momentum
                  1 + m*taken, m*kept    with Nesterov momentum

All coefficients are nonnegative (the recipe checks that a*l*c <= 1), so the lower end of theta'
follows from the lower end of theta and the upper ends of g and buffer, and vice versa. Every
operation is rounded monotonically.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from .. import kernels
from ..errors import InvalidInput, UnsoundBounds
from ..intervals import Interval, largest_parameter
from ..layers import Gradient
from ..relations import Neighbours
from .recipe import Recipe


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


def layout(shape: torch.Size) -> tuple[int, int]:
    """Return the rows and columns in which a parameter's gradient is summed.

    Matrices (dense weights) are summed as outputs x inputs, all other shapes as one row.
    """
    return (shape[0], shape[1]) if len(shape) == 2 else (1, shape.numel())


class GradientSums:
    """Gradient sums of one batch over one box, with bounds at every distance up to `farthest`.

    Let s be the sum of the lower ends over the batch's records, in units of clip / UNITS. The lower
    bound at distance k is

        add_remove   s - k * UNITS
        replace      s - (sum of the k largest lower ends) - k * UNITS
        remove       s - (sum of the k largest of max(lower end, 0))

    and the upper bound is the negative of the same expression for the negated upper ends (theory:
    docs/theory/descent.md). Public records are summed but never selected.

    A record whose numbers overflow counts as 0 at distance 0, and as its whole clip range at all
    other distances. It therefore moves a bound by no more than any other record, and no input is
    rejected because of it.

    If moves are whole persons, each record of a person with m records is clipped at UNITS // m, so
    that the person moves a bound by no more than UNITS (docs/theory/persons.md).

    Guarantees:
        All sums are sums of whole numbers and exact, so records may come in any order. The bounds
        are isotonic in every record's interval.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], neighbours: Neighbours, farthest: int, records: int
    ) -> None:
        self.neighbours = neighbours
        self.records = records
        self.shapes = {name: value.shape for name, value in parameters.items()}
        self.totals: dict[str, Tensor] = {}
        self.largest: dict[str, Any] = {}
        self.overflowed = dict.fromkeys(parameters, 0)  # records, public ones included
        self.overflowed_units = dict.fromkeys(parameters, 0)  # the sum of their clips
        self.selectable = dict.fromkeys(parameters, 0)  # private records that did not overflow
        floor = kernels.LOWEST if neighbours.adds_records else 0
        depart = _departure_count(neighbours, farthest, records)
        for name, value in parameters.items():
            rows, columns = layout(value.shape)
            self.totals[name] = torch.zeros(2, rows, columns, dtype=torch.float64)
            if depart:
                self.largest[name] = kernels.LargestEntries.start(rows, columns, depart, floor)

    def accumulate(
        self,
        name: str,
        gradient: Gradient,
        finite: Bool[Tensor, " records"],
        private: bool,
        limits: Int64[Tensor, " records"] | None = None,
    ) -> None:
        """Add a block of records; those that are not `finite` have overflowed.

        `limits` are the clips of the records in whole units; None: UNITS.
        """
        count = int(finite.sum())
        if count < len(finite):
            gradient = gradient.rows(finite)
            lost = len(finite) - count
            self.overflowed[name] += lost
            self.overflowed_units[name] += (
                lost * kernels.UNITS if limits is None else int(limits[~finite].sum())
            )
            limits = None if limits is None else limits[finite]
        gradient.add_to(self.totals[name], self.largest.get(name) if private else None, limits)
        self.selectable[name] += count if private else 0

    def merge(self, other: GradientSums) -> None:
        """Add the sums over other records of the same batch.

        Guarantees:
            The result is that of accumulating all records here: whole numbers are added, and the
            largest entries of both are those of all.
        """
        for name in self.shapes:
            self.totals[name] += other.totals[name]
            self.overflowed[name] += other.overflowed[name]
            self.overflowed_units[name] += other.overflowed_units[name]
            self.selectable[name] += other.selectable[name]
            if name in self.largest:
                self.largest[name].merge(other.largest[name])

    def bounds(self, name: str, distance: int) -> Interval:
        """Return the bounds of the summed gradient at a distance, in units, as float64."""
        worst = self.totals[name]
        if distance:
            adds_records = distance if self.neighbours.adds_records else 0
            worst = worst - (adds_records * kernels.UNITS + self.overflowed_units[name])
        if distance and name in self.largest:
            worst = worst - self._departed_sum(name, distance)
        return Interval(worst[0], -worst[1]).map_entries(lambda end: end.view(self.shapes[name]))

    def _departed_sum(self, name: str, distance: int) -> Tensor:
        """Return the largest sum that departed records can have contributed.

        Records that overflowed count as the smallest possible entry.
        """
        count = _departure_count(self.neighbours, distance, self.records)
        chosen = min(count, self.selectable[name])
        smallest = -kernels.UNITS if self.neighbours.adds_records else 0
        departed: Tensor = self.largest[name].sums(chosen) + (count - chosen) * smallest
        return departed

    def width_from_box(self, name: str) -> float:
        """Return the mean width of the summed gradient that comes from the box alone, in units."""
        return float(-self.totals[name].sum() / self.totals[name][0].numel())


def selection_bytes(
    parameters: Mapping[str, Tensor], neighbours: Neighbours, distance: int, records: int
) -> int:
    """Return about how many bytes the selection of the largest entries needs."""
    return (
        _departure_count(neighbours, distance, records)
        * 8
        * sum(value.numel() for value in parameters.values())
    )


def _departure_count(neighbours: Neighbours, distance: int, records: int) -> int:
    """Return how many of the batch's records may have departed and must be selected."""
    return min(distance, records) if neighbours.selects_removals else 0


@dataclass(frozen=True)
class ReachableBoxes:
    """The boxes of parameters and of momentum buffers that training can reach at one distance."""

    bounds: ParameterBounds
    buffers: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class Coefficients:
    """The public numbers of one step, named as in the module's docstring."""

    rate: float
    shrink: float  # 1 - a*l*c
    gradient: float  # c
    buffer: float  # e
    kept: float
    taken: float

    @classmethod
    def of(cls, recipe: Recipe, step: int) -> Coefficients:
        rate = recipe.learning_rate_at(step)
        first = step == 0
        kept, taken = (0.0, 1.0) if first else (recipe.momentum, 1.0 - recipe.dampening)
        if not recipe.momentum:
            gradient, buffer = 1.0, 0.0
        elif recipe.nesterov:
            gradient, buffer = 1.0 + recipe.momentum * taken, recipe.momentum * kept
        else:
            gradient, buffer = taken, kept
        return cls(rate, 1.0 - rate * recipe.weight_decay * gradient, gradient, buffer, kept, taken)


def advance(
    reachable: ReachableBoxes, name: str, gradient: Interval, recipe: Recipe, step: int
) -> tuple[Interval, Interval | None]:
    """Return one parameter's box after a step, and its momentum buffer if there is momentum.

    Guarantees:
        Isotonic as executed. On point intervals it computes torch.optim.SGD's step, up to rounding.
        All ends are finite: numbers beyond `largest_parameter` are clamped to it, which is an
        increasing function like all others here.
    """
    coefficients = Coefficients.of(recipe, step)
    theta = reachable.bounds.box[name]
    descent = _scaled(gradient, coefficients.gradient)
    if coefficients.buffer:
        descent = saturated(descent + _scaled(reachable.buffers[name], coefficients.buffer))
    shrunk = _scaled(theta, coefficients.shrink) if coefficients.shrink != 1.0 else theta
    moved = saturated(shrunk - _scaled(descent, coefficients.rate))
    if not recipe.momentum:
        return moved, None
    taken = gradient
    if recipe.weight_decay:
        taken = saturated(taken + _scaled(theta, recipe.weight_decay))
    buffer = _scaled(taken, coefficients.taken)
    if coefficients.kept:
        buffer = saturated(buffer + _scaled(reachable.buffers[name], coefficients.kept))
    return moved, buffer


def saturated(interval: Interval) -> Interval:
    """Clamp both ends to the range of parameters."""
    limit = largest_parameter(interval.lower.dtype)
    return interval.map_increasing(lambda end: end.clamp(-limit, limit))


def _scaled(interval: Interval, factor: float) -> Interval:
    return saturated(interval.map_increasing(lambda end: end * factor))
