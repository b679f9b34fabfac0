"""The optimiser: torch.optim.SGD on boxes.

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

from ..intervals import Interval, largest_parameter
from .bounds import ParameterBounds
from .recipe import Recipe


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
