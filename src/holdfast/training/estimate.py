"""Estimates of a run before it is made: time by running a little of it, memory and file size by counting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from ..records import Block, Source
from .loop import Job, run

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
