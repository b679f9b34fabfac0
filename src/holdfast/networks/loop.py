"""The training loop: in every step, bound the gradient and move the box of every distance.

Distances share the passes over the data; while their boxes are the same, as all are before the
first step, they share the computation too. The box of distance 0 contains a single model, and that
model *is* the trained model. Soundness is therefore a matter of nesting and needs no analysis of
rounding errors (docs/theory/floating-point.md).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import torch

from ..engines import Engine, Handle, LocalHandle, Task, local_engine
from ..intervals import Interval, mean_width
from ..kernels import UNITS
from ..layers import ForwardPass, Network
from ..models import new_run_id
from ..records import Block, Rows, part_rows
from ..relations import Neighbours
from ..workers import ProgressCallback, no_grad_no_autocast
from .boxes import (
    GradientSums,
    ParameterBounds,
    ReachableBoxes,
    advance,
    nominal_parameters,
    saturated,
    selection_bytes,
)
from .recipe import Recipe


@dataclass(frozen=True)
class Growth:
    """How one step changed one parameter's box, at the middle distance."""

    step: int
    parameter: str
    width: float  # mean width of the box after the step
    spread: float  # mean width of the step's gradient that comes from the box before it
    moves: float  # mean width of the step's gradient that comes from the moves on this batch

    def __post_init__(self) -> None:
        for name in ("width", "spread", "moves"):
            # Widths of the largest floats can overflow; a diagnostic must not stop training.
            if not math.isfinite(getattr(self, name)):
                object.__setattr__(self, name, sys.float_info.max)


@dataclass(frozen=True)
class State:
    """The state of training after `step` steps."""

    run_id: str
    step: int
    boxes: tuple[ReachableBoxes, ...]
    growth: tuple[Growth, ...] = ()
    overflowed: int = 0  # most records that overflowed in one step, at any distance


@dataclass(frozen=True)
class Job:
    """Everything that decides the outcome of training, checked and complete."""

    network: Network
    recipe: Recipe
    neighbours: Neighbours
    distances: tuple[int, ...]  # without 0
    private: Rows | SharedRows
    public: Rows | SharedRows | None = None
    max_records_per_person: int | None = None  # of the private source

    @property
    def block_rows(self) -> int:
        """The number of records that are propagated at a time.

        It is small enough for the processor's cache, and no larger than the (public) batch size
        calls for.
        """
        assert self.recipe.batch_size is not None
        return min(self.network.block_rows, max(16, 1 << (self.recipe.batch_size - 1).bit_length()))

    def start(self) -> State:
        """Return the state before the first step, in which every box is the initial model."""
        box = {
            name: Interval.point(self.network.parameters[name]) for name in self.network.trainable
        }
        return State(
            new_run_id(),
            0,
            tuple(ReachableBoxes(ParameterBounds(k, box)) for k in (0, *self.distances)),
        )


def diagnosed_distance(distances: tuple[int, ...]) -> int | None:
    """Return the distance whose growth is recorded for diagnosis."""
    return distances[len(distances) // 2] if distances else None


@dataclass(frozen=True)
class SharedRows:
    """The records of a job, shared through an engine in pieces of some rows.

    A piece holds the arrays of a block: features, labels, and counts or None.
    """

    pieces: tuple[tuple[Handle[Any], ...], ...]  # per batch
    counts: tuple[int, ...]
    rows: int  # of a piece

    @classmethod
    def of(cls, source: Rows, engine: Engine) -> SharedRows:
        """Share the records of a job."""
        batches = range(len(source.starts) - 1)
        rows = part_rows(math.prod(source.shape) * source.features.dtype.itemsize)
        pieces = tuple(
            tuple(
                engine.share(tuple(None if part is None else part.numpy() for part in block))
                for block in source.blocks(batch, rows)
            )
            for batch in batches
        )
        return cls(pieces, tuple(source.count(batch) for batch in batches), rows)

    def count(self, batch: int) -> int:
        return self.counts[batch]

    def blocks(
        self, batch: int, rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[Block]:
        end = self.counts[batch] if last is None else min(last, self.counts[batch])
        while first < end:
            number, low = divmod(first, self.rows)
            high = min(self.rows, low + end - first)
            piece = self.pieces[batch][number].get()
            for start in range(low, high, rows):
                chosen = slice(start, min(start + rows, high))
                # Copied, because shared memory is not aligned and not writable.
                features, labels, counts = (
                    None if part is None else torch.from_numpy(np.array(part[chosen]))
                    for part in piece
                )
                assert features is not None
                assert labels is not None
                yield Block(features, labels, counts)
            first += high - low


_SELECTION_MEMORY = 2**28  # bytes; distances whose selections exceed it take another pass
_TASK_PRODUCTS = 2**32  # products of an entry of a record and a weight: seconds of work
_SPAN_ROWS = 1024  # the least rows that are worth a task of their own


def run(
    job: Job,
    state: State,
    on_progress: ProgressCallback | None = None,
    engine: Engine | None = None,
) -> Iterator[State]:
    """Train from `state` to the end and yield the state after every step.

    `on_progress` is called with the number of pairs of a record and a distance just processed.
    Without an engine, a local one is started.
    """
    with local_engine() if engine is None else nullcontext(engine) as used:
        shared = used.share(_with_shared_records(job, used))
        while state.step < job.recipe.steps:
            with no_grad_no_autocast():
                state = _step(job, shared, state, on_progress, used)
                nominal_parameters(state.boxes[0].bounds)
            yield state


def _with_shared_records(job: Job, engine: Engine) -> Job:
    """Return the job with records that the engine's tasks can read."""
    if not engine.remote:
        return job
    assert isinstance(job.private, Rows)
    assert isinstance(job.public, Rows | None)
    public = None if job.public is None else SharedRows.of(job.public, engine)
    private = SharedRows.of(job.private, engine)
    return replace(job, private=private, public=public)


def _step(
    job: Job,
    shared: Handle[Job],
    state: State,
    on_progress: ProgressCallback | None,
    engine: Engine,
) -> State:
    moved_boxes: list[ReachableBoxes] = []
    growth, overflowed = state.growth, state.overflowed
    for group in _groups(job, state, state.step % job.recipe.batches):
        for moves, lost in _move_group(job, shared, state.step, group, on_progress, engine):
            overflowed = max(overflowed, lost)
            for moved, grown in moves:
                moved_boxes.append(moved)
                if moved.bounds.distance == diagnosed_distance(job.distances):
                    growth = growth + grown
    return State(state.run_id, state.step + 1, tuple(moved_boxes), growth, overflowed)


SharedBox = Sequence[ReachableBoxes]
"""Distances, in increasing order, whose boxes are one and the same object."""


def _groups(job: Job, state: State, batch: int) -> Iterator[list[SharedBox]]:
    """Yield groups of distances that share one pass over the batch."""
    group: list[SharedBox] = []
    held = 0
    parameters = {name: job.network.parameters[name] for name in job.network.trainable}
    for _, same in groupby(state.boxes, lambda reachable: id(reachable.bounds.box)):
        together = list(same)
        size = selection_bytes(
            parameters, job.neighbours, together[-1].bounds.distance, job.private.count(batch)
        )
        if group and held + size > _SELECTION_MEMORY:
            yield group
            group, held = [], 0
        group.append(together)
        held += size
    yield group


Moved = tuple[list[tuple[ReachableBoxes, tuple[Growth, ...]]], int]
"""The distances of a shared box after a step, and how many records overflowed at most."""


def _move_group(
    job: Job,
    shared: Handle[Job],
    step: int,
    group: Sequence[SharedBox],
    on_progress: ProgressCallback | None,
    engine: Engine,
) -> Iterator[Moved]:
    """Take the step at all distances of the group, in tasks of some boxes and some rows."""
    count = job.private.count(step % job.recipe.batches)
    chunks, spans = _task_ranges(job, len(group), count, engine.parallel)
    tasks = _tasks(job, shared, step, [group[chunk] for chunk in chunks], spans, engine)
    if len(spans) == 1:  # nothing is to be merged, so tasks can finish the step
        for moved in engine.run(_move_part, tasks, on_progress):
            yield from moved
        return
    found = engine.run(_sum_part, tasks, on_progress)
    for chunk in chunks:
        sums = next(found)
        for _ in spans[1:]:  # whole numbers are added, in the order of the rows
            for whole, part in zip(sums, next(found), strict=True):
                whole.merge(part)
        yield from engine.run_here(partial(_update_boxes, job, step), group[chunk], sums)


def _task_ranges(
    job: Job, boxes: int, rows: int, parallel: int
) -> tuple[list[slice], list[tuple[int, int]]]:
    """Return the ranges of boxes, and the ranges of rows, that are one task each.

    Rows are cut only if there are too few boxes for the workers, or if a task would take too long
    to be lost: selections of largest entries are faster in one piece.
    """
    products = rows * sum(job.network.parameters[name].numel() for name in job.network.trainable)
    chunks = min(boxes, max(4 * parallel, -(-boxes * products // _TASK_PRODUCTS)))
    wanted = max(-(-parallel // chunks), -(-boxes * products // (chunks * _TASK_PRODUCTS)))
    spans = min(wanted, max(1, rows // _SPAN_ROWS))
    return (
        [slice(*pair) for pair in pairwise(boxes * part // chunks for part in range(chunks + 1))],
        list(pairwise(rows * part // spans for part in range(spans + 1))),
    )


def _tasks(
    job: Job,
    shared: Handle[Job],
    step: int,
    chunks: Sequence[Sequence[SharedBox]],
    spans: Sequence[tuple[int, int]],
    engine: Engine,
) -> Iterator[Task]:
    """Yield the tasks of a pass: all spans of the first chunk, of the second, and so on."""
    public = 0 if job.public is None else job.public.count(0)
    for chunk in chunks:
        boxes, distances = engine.share(chunk), sum(len(together) for together in chunk)
        for number, (first, last) in enumerate(spans):
            rows = last - first + (public if number == 0 else 0)
            yield Task((shared, boxes, step, first, last, number == 0), rows * distances)


def _sum_part(
    shared: Handle[Job],
    chunk: Handle[Sequence[SharedBox]],
    step: int,
    first: int,
    last: int,
    with_public: bool,
    on_progress: ProgressCallback | None,
) -> list[GradientSums]:
    """Sum the gradients of some rows of a batch, and of the public records, over some boxes."""
    with no_grad_no_autocast():  # these modes are set per thread
        job, boxes = shared.get(), chunk.get()
        batch = step % job.recipe.batches
        parameters = {name: job.network.parameters[name] for name in job.network.trainable}
        count = job.private.count(batch)
        sums = [
            GradientSums(parameters, job.neighbours, together[-1].bounds.distance, count)
            for together in boxes
        ]
        for block, private in _blocks(job, batch, first, last, with_public):
            entered = job.network.first_input(block.features)
            for together, sums_of_box in zip(boxes, sums, strict=True):
                _add_block(job, entered, block, private, together[-1].bounds.box, sums_of_box)
                if on_progress is not None:
                    on_progress(len(block.labels) * len(together))
    return sums


def _move_part(
    shared: Handle[Job],
    chunk: Handle[Sequence[SharedBox]],
    step: int,
    first: int,
    last: int,
    with_public: bool,
    on_progress: ProgressCallback | None,
) -> list[Moved]:
    """Take the step at the distances of some boxes, whose rows are all in this task."""
    job, boxes = LocalHandle(shared.get()), LocalHandle(chunk.get())
    sums = _sum_part(job, boxes, step, first, last, with_public, on_progress)
    return [
        _update_boxes(job.get(), step, together, sums_of_box)
        for together, sums_of_box in zip(boxes.get(), sums, strict=True)
    ]


def _add_block(
    job: Job,
    entered: ForwardPass,
    block: Block,
    private: bool,
    bounds: Mapping[str, Interval],
    sums_of_box: GradientSums,
) -> None:
    """Bound the gradients of one block's records over one box, and add them to the sums."""
    box = job.network.box(bounds)
    passed = job.network.forward(entered, box)
    outputs = job.network.outputs_of(passed, box)
    limits = None if block.counts is None else UNITS // block.counts
    outgoing = job.recipe.loss_function.gradient(outputs, block.labels)
    outgoing = outgoing.map_increasing(lambda end: end * (UNITS / job.recipe.clip))
    for name, gradient, finite in job.network.backward(passed, box, outgoing, outputs.finite):
        sums_of_box.accumulate(name, gradient, finite, private, limits)


def _blocks(
    job: Job, batch: int, first: int, last: int, with_public: bool
) -> Iterator[tuple[Block, bool]]:
    rows = job.block_rows
    for block in job.private.blocks(batch, rows, first, last):
        yield block, True
    if with_public and job.public is not None:
        for block in job.public.blocks(0, rows):
            yield block, False


def _update_boxes(job: Job, step: int, together: SharedBox, sums_of_box: GradientSums) -> Moved:
    """Take the step at all distances that share one box.

    The distances run one after the other because reading the bounds sorts the selection in place.
    """
    with no_grad_no_autocast():  # these modes are set per thread
        moves = [_update_box(job, step, sums_of_box, reachable) for reachable in together]
    return moves, max(sums_of_box.overflowed.values())


def _update_box(
    job: Job, step: int, sums_of_box: GradientSums, reachable: ReachableBoxes
) -> tuple[ReachableBoxes, tuple[Growth, ...]]:
    """Take the step at one distance.

    The gradient is converted from whole units only here, after all sums.
    """
    assert job.recipe.batch_size is not None
    unit = job.recipe.clip / UNITS / job.recipe.batch_size
    box, buffers, growth = {}, {}, []
    for name in job.network.trainable:
        summed = sums_of_box.bounds(name, reachable.bounds.distance)
        gradient = saturated(summed.map_increasing(lambda end: (end * unit).to(job.network.dtype)))
        box[name], buffer = advance(reachable, name, gradient, job.recipe, step)
        if buffer is not None:
            buffers[name] = buffer
        spread = sums_of_box.width_from_box(name)
        moves = mean_width(summed) - spread
        growth.append(Growth(step, name, mean_width(box[name]), spread * unit, moves * unit))
    return ReachableBoxes(replace(reachable.bounds, box=box), buffers), tuple(growth)
