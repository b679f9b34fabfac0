"""Diagnosis: where a box grew, why, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InvalidInput
from .loop import Growth
from .recipe import Recipe

_DOMINATES = 2.0  # how many times larger one cause must be to be called the cause


@dataclass(frozen=True)
class Diagnosis:
    """The step and the parameter whose box grew fastest, and advice. NOT private."""

    distance: int
    step: int  # counted from 1
    parameter: str
    growth: float  # by how much the mean width grew in that step
    share: float  # of that parameter's final width
    from_moves: float  # part of the step's gradient width that stems from the moves themselves
    from_box: float  # part that stems from the box before the step
    advice: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"At distance {self.distance} the box grows fastest in step {self.step}, in {self.parameter}: "
            f"mean width +{self.growth:.3g}, {self.share:.0%} of its final width.",
            f"Width of that step's gradient: {self.from_moves:.3g} from the moves, {self.from_box:.3g} from the box itself.",
            *(f"- {line}" for line in self.advice),
        ]
        return "\n".join(lines)


def diagnose(growth: Sequence[Growth], recipe: Recipe, travelled: dict[str, float], distance: int | None) -> Diagnosis:
    """Find the fastest growth; `travelled` is how far each parameter of the nominal model has moved."""
    width: dict[str, float] = {}
    gains: list[tuple[float, Growth]] = []
    for grown in growth:
        gains.append((grown.width - width.get(grown.parameter, 0.0), grown))
        width[grown.parameter] = grown.width
    if distance is None or not gains:
        raise InvalidInput("no distance beyond 0 was run: there is no box to diagnose")
    gained, worst = max(gains, key=lambda pair: pair[0])
    final = max(width[worst.parameter], 1e-300)
    return Diagnosis(
        distance=distance,
        step=worst.step + 1,
        parameter=worst.parameter,
        growth=gained,
        share=gained / final,
        from_moves=worst.moves,
        from_box=worst.spread,
        advice=tuple(_advice(worst, recipe, travelled[worst.parameter], final, distance)),
    )


def _advice(worst: Growth, recipe: Recipe, travelled: float, width: float, distance: int) -> list[str]:
    advice = []
    if worst.spread > _DOMINATES * worst.moves:
        advice.append(
            f"steps: the box feeds on itself; fewer steps certify more (now {recipe.steps}); "
            "one or two large steps on well-scaled features often suffice"
        )
    if worst.moves > _DOMINATES * worst.spread:
        advice.append(
            f"batch: the moves dominate; each weighs clip/batch_size = {recipe.clip:g}/{recipe.batch_size}; "
            f"use more records per batch (now {recipe.batches} per epoch; 1 is the full batch)"
        )
    if width > travelled:
        advice.append(
            f"clip: the box is {width / max(travelled, 1e-300):.1f} times as wide as the way the parameter travelled; "
            f"a smaller clip (now {recipe.clip:g}) narrows the box more than it slows training, while most gradients are below it"
        )
        advice.append("start: a network whose untrained answer is 0 leaves the whole margin to what was learned")
    if not advice:
        advice.append(f"nothing stands out: certify smaller distances than {distance}, or use more records")
    return advice
