"""Diagnosis of loose bounds after training, and estimates of time and memory before it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from ..errors import InvalidInput
from ..records import Block, Source
from .loop import Growth, Job, run
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


_DISTANCES = 6  # of a trial run
_BLOCKS = 2


@dataclass(frozen=True)
class Estimate:
    """About how much a run takes."""

    seconds: float
    memory: int  # bytes at the peak, above the program itself
    file: int  # bytes of the saved model


@dataclass(frozen=True)
class _Few:
    """The first blocks of another source."""

    source: Source
    rows: int

    def count(self, batch: int) -> int:
        return min(self.source.count(batch), _BLOCKS * self.rows)

    def blocks(self, batch: int, rows: int) -> Iterator[Block]:
        for number, block in enumerate(self.source.blocks(batch, rows)):
            if number < _BLOCKS:
                yield block


def estimate(job: Job) -> Estimate:
    """Run two steps on a few blocks at a few distances, and scale: in the first, all distances share the pass over the records."""
    boxes = len(job.distances) + 1
    stride = max(1, len(job.distances) // _DISTANCES)
    few = _Few(job.private, job.block_rows)
    trial = replace(job, distances=job.distances[::-stride][::-1], private=few)
    alone = replace(trial, distances=trial.distances[-1:])
    for _ in range(2):  # the first time, loops are compiled
        first, second = _timed(trial)
        shared, _ = _timed(alone)
    each = max(0.0, first - shared) / max(1, len(trial.distances) - 1)
    tried = max(1, _rows(trial, trial.private, 0))
    total = sum(_rows(job, job.private, batch) for batch in range(job.recipe.batches)) * job.recipe.epochs
    later = (total - _rows(job, job.private, 0)) * boxes / (len(trial.distances) + 1)
    seconds = (shared * _rows(job, job.private, 0) + second * later) / tried + each * boxes
    size = sum(job.network.parameters[name].numel() for name in job.network.trainable) * job.network.dtype.itemsize
    held = 2 * size * boxes * (2 if job.recipe.momentum else 1)
    selected = min(2**28, size * sum(job.distances)) if job.neighbours.departures else 0
    return Estimate(seconds, 3 * held + 2 * selected + _working(job), 2 * size * boxes)


def _timed(trial: Job) -> tuple[float, float]:
    """The seconds that a run's first step takes, and its second, if there is one."""
    states = run(trial, trial.start())
    marks = [time.perf_counter()]
    for _ in range(2):
        next(states, None)
        marks.append(time.perf_counter())
    return marks[1] - marks[0], marks[2] - marks[1]


def _rows(job: Job, private: Source, batch: int) -> int:
    """Records that a step works on."""
    return private.count(batch) + (0 if job.public is None else job.public.count(0))


def _working(job: Job) -> int:
    """Bytes for the activations of one block in every thread."""
    widest = max(parameter.numel() // max(1, parameter.shape[-1]) for parameter in job.network.parameters.values())
    return 16 * job.block_rows * widest * job.network.dtype.itemsize * torch.get_num_threads()
