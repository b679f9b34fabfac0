"""The optimiser: torch.optim.SGD on boxes.

torch's update, with gradient g, weight decay l, momentum m, dampening d, rate a, is linear with public coefficients:

    buffer' = kept * buffer + taken * (g + l * theta)
    theta'  = (1 - a*l*c) * theta - a * (c * g + e * buffer)

    kept, taken = 0, 1     on the first step, else m, 1 - d
    c, e        = 1, 0     without momentum
                  taken, kept            with momentum
                  1 + m*taken, m*kept    with Nesterov's

All coefficients are nonnegative (a*l*c <= 1 is checked by the recipe), so the lower end of theta' takes the lower end
of theta and the upper ends of g and buffer, and the other way round. Every operation is rounded monotonically.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..intervals import Interval, largest_parameter
from .bounds import ParameterBounds
from .recipe import Recipe


@dataclass(frozen=True)
class Reach:
    """What training can have reached at one distance: the box of parameters and that of the momentum buffers."""

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


def advance(reach: Reach, name: str, gradient: Interval, recipe: Recipe, step: int) -> tuple[Interval, Interval | None]:
    """One step for one parameter: its new box, and its new momentum buffer if there is momentum.

    Guarantees:
        Isotonic as executed. On intervals that are points it computes torch.optim.SGD's step, to rounding. All ends are
        finite: numbers beyond `largest_parameter` are set to it, which is an increasing function like all others here.
    """
    by = Coefficients.of(recipe, step)
    theta = reach.bounds.box[name]
    descent = _scaled(gradient, by.gradient)
    if by.buffer:
        descent = saturated(descent + _scaled(reach.buffers[name], by.buffer))
    shrunk = _scaled(theta, by.shrink) if by.shrink != 1.0 else theta
    moved = saturated(shrunk - _scaled(descent, by.rate))
    if not recipe.momentum:
        return moved, None
    taken = gradient
    if recipe.weight_decay:
        taken = saturated(taken + _scaled(theta, recipe.weight_decay))
    buffer = _scaled(taken, by.taken)
    if by.kept:
        buffer = saturated(buffer + _scaled(reach.buffers[name], by.kept))
    return moved, buffer


def saturated(interval: Interval) -> Interval:
    """Set numbers that outgrew the range of parameters to its end."""
    limit = largest_parameter(interval.lower.dtype)
    return interval.map_increasing(lambda end: end.clamp(-limit, limit))


def _scaled(interval: Interval, factor: float) -> Interval:
    return saturated(interval.map_increasing(lambda end: end * factor))
