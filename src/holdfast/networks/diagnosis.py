"""Diagnosis of loose bounds after training, and estimates of time and memory before it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..errors import InvalidInput
from ..models import Estimate
from ..records import Rows
from .loop import Growth, Job, SharedRows, run
from .recipe import Recipe

_DOMINANCE_FACTOR = 2.0  # a cause dominates if it is this many times larger than the other


@dataclass(frozen=True)
class Diagnosis:
    """The step and the parameter whose box grew fastest, and advice. NOT private."""

    distance: int
    step: int  # counted from 1
    parameter: str
    growth: float  # increase of the mean width in that step
    share: float  # growth divided by that parameter's final mean width
    from_moves: float  # part of the step's gradient width that comes from the moves
    from_box: float  # part that comes from the box before the step
    advice: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"At distance {self.distance} the box grows fastest in step {self.step}, "
            f"in {self.parameter}: "
            f"mean width +{self.growth:.3g}, {self.share:.0%} of its final width.",
            f"Width of that step's gradient: {self.from_moves:.3g} from the moves, "
            f"{self.from_box:.3g} from the box itself.",
            *(f"- {line}" for line in self.advice),
        ]
        return "\n".join(lines)


def diagnose(
    growth: Sequence[Growth], recipe: Recipe, travelled: dict[str, float], distance: int | None
) -> Diagnosis:
    """Find the step and the parameter whose box grew fastest.

    `travelled` is how far each parameter of the nominal model has moved.
    """
    width: dict[str, float] = {}
    gains: list[tuple[float, Growth]] = []
    for grown in growth:
        gains.append((grown.width - width.get(grown.parameter, 0.0), grown))
        width[grown.parameter] = grown.width
    if distance is None or not gains:
        raise InvalidInput(
            "no distance beyond 0 was run: there is no box to diagnose; "
            "train with max_distance=1 or more"
        )
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


def _advice(
    worst: Growth, recipe: Recipe, travelled: float, width: float, distance: int
) -> list[str]:
    advice = []
    if worst.spread > _DOMINANCE_FACTOR * worst.moves:
        advice.append(
            f"steps: the width of the box itself dominates; use fewer steps (now {recipe.steps}); "
            "one or two large steps on well-scaled features often suffice"
        )
    if worst.moves > _DOMINANCE_FACTOR * worst.spread:
        remedy = (
            f"use fewer batches (now {recipe.batches} per epoch; 1 is the full batch)"
            if recipe.batches > 1
            else "all records are in one batch already, so only a smaller clip, a smaller learning "
            "rate or more records narrow the box"
        )
        advice.append(
            "moves: they dominate; each contributes up to clip/batch_size = "
            f"{recipe.clip:g}/{recipe.batch_size}; {remedy}"
        )
    if width > travelled:
        advice.append(
            f"clip: the box is {width / max(travelled, 1e-300):.1f} times as wide as the distance "
            f"that the parameter moved; a smaller clip (now {recipe.clip:g}) narrows the box more "
            "than it slows training, as long as most gradients are below it"
        )
        advice.append(
            "start: use a network whose untrained answer is 0 (hf.zero_output), so that the "
            "whole margin comes from what was learned"
        )
    if not advice:
        advice.append(
            "no single cause dominates: "
            f"certify smaller distances than {distance}, or use more records"
        )
    return advice


_TRIAL_DISTANCES = 6  # about how many distances a trial run has
_TRIAL_BLOCKS = 2  # how many blocks of records a trial run has


def estimate(job: Job) -> Estimate:
    """Estimate a run from two steps on a few blocks at a few distances, scaled up.

    The first step is measured apart because all distances share its pass over the records.
    """
    boxes = len(job.distances) + 1
    stride = max(1, len(job.distances) // _TRIAL_DISTANCES)
    assert isinstance(job.private, Rows)
    few = job.private.first(_TRIAL_BLOCKS * job.block_rows)
    trial = replace(job, distances=job.distances[::-stride][::-1], private=few)
    alone = replace(trial, distances=trial.distances[-1:])
    for _ in range(2):  # the first round compiles the loops
        first, second = _step_seconds(trial)
        shared, _ = _step_seconds(alone)
    each = max(0.0, first - shared) / max(1, len(trial.distances) - 1)
    tried = max(1, _records_per_step(trial, trial.private, 0))
    total = (
        sum(_records_per_step(job, job.private, batch) for batch in range(job.recipe.batches))
        * job.recipe.epochs
    )
    later = (total - _records_per_step(job, job.private, 0)) * boxes / (len(trial.distances) + 1)
    seconds = (
        shared * _records_per_step(job, job.private, 0) + second * later
    ) / tried + each * boxes
    size = (
        sum(job.network.parameters[name].numel() for name in job.network.trainable)
        * job.network.dtype.itemsize
    )
    held = 2 * size * boxes * (2 if job.recipe.momentum else 1)
    selected = min(2**28, size * sum(job.distances)) if job.neighbours.selects_removals else 0
    return Estimate(seconds, 3 * held + 2 * selected + _activation_bytes(job), 2 * size * boxes)


def _step_seconds(trial: Job) -> tuple[float, float]:
    """Return the seconds of a run's first and second step (about 0 if there is no second)."""
    states = run(trial, trial.start())
    marks = [time.perf_counter()]
    for _ in range(2):
        next(states, None)
        marks.append(time.perf_counter())
    return marks[1] - marks[0], marks[2] - marks[1]


def _records_per_step(job: Job, private: Rows | SharedRows, batch: int) -> int:
    """Return how many records, private and public, a step works on."""
    return private.count(batch) + (0 if job.public is None else job.public.count(0))


def _activation_bytes(job: Job) -> int:
    """Return about how many bytes the activations of one block per thread need."""
    widest = max(
        parameter.numel() // max(1, parameter.shape[-1])
        for parameter in job.network.parameters.values()
    )
    return 16 * job.block_rows * widest * job.network.dtype.itemsize * torch.get_num_threads()
