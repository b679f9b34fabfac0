"""The training loop: in every step, bound the gradient and move the box of every distance.

Distances share the passes over the data; while their boxes are the same, as all are before the
first step, they share the computation too. The box of distance 0 contains a single model, and that
model *is* the trained model. Soundness is therefore a matter of nesting and needs no analysis of
rounding errors (docs/theory/floating-point.md).
"""

from __future__ import annotations

import math
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from ..intervals import Interval, mean_width
from ..kernels import UNITS
from ..layers import ForwardPass, Network
from ..progress import ProgressCallback
from ..records import Block, Source
from ..relations import Neighbours
from ..workers import no_grad_no_autocast, workers
from .bounds import ParameterBounds, nominal_parameters
from .gradient_bounds import GradientSums, selection_bytes
from .optimizer import ReachableBoxes, advance, saturated
from .recipe import Recipe

_SELECTION_MEMORY = 2**28  # bytes; distances whose selections exceed it take another pass


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
    private: Source
    public: Source | None = None
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


def new_run_id() -> str:
    """Return a random id for a training run.

    Guarantees:
        The id reveals nothing about the records. In particular, two ids do not tell whether the
        records changed between the two runs.
    """
    return secrets.token_hex(16)


def diagnosed_distance(distances: tuple[int, ...]) -> int | None:
    """Return the distance whose growth is recorded for diagnosis."""
    return distances[len(distances) // 2] if distances else None


def run(job: Job, state: State, watch: ProgressCallback | None = None) -> Iterator[State]:
    """Train from `state` to the end and yield the state after every step.

    `watch` is called with the number of pairs of a record and a distance just processed.
    """
    with workers() as pool:
        while state.step < job.recipe.steps:
            with no_grad_no_autocast():
                state = _step(job, state, watch or (lambda amount: None), pool)
                nominal_parameters(state.boxes[0].bounds)
            yield state


def _step(job: Job, state: State, watch: ProgressCallback, pool: ThreadPoolExecutor) -> State:
    batch = state.step % job.recipe.batches
    moved_boxes: list[ReachableBoxes] = []
    growth, overflowed = state.growth, state.overflowed
    for group in _groups(job, state, batch):
        sums = _sum_gradients(job, group, batch, watch, pool)
        for moves in pool.map(partial(_update_boxes, job, state.step), group, sums):
            for moved, grown in moves:
                moved_boxes.append(moved)
                if moved.bounds.distance == diagnosed_distance(job.distances):
                    growth = growth + grown
        overflowed = max(
            overflowed,
            *(count for sums_of_box in sums for count in sums_of_box.overflowed.values()),
        )
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


def _sum_gradients(
    job: Job,
    group: Sequence[SharedBox],
    batch: int,
    watch: ProgressCallback,
    pool: ThreadPoolExecutor,
) -> list[GradientSums]:
    """Sum the batch's gradients over every box of the group, with boxes in parallel."""
    parameters = {name: job.network.parameters[name] for name in job.network.trainable}
    count = job.private.count(batch)
    sums = [
        GradientSums(parameters, job.neighbours, together[-1].bounds.distance, count)
        for together in group
    ]
    boxes = [together[-1].bounds.box for together in group]
    for block, private in _blocks(job, batch):
        entered = pool.submit(job.network.first_input, block.features).result()
        work = partial(_add_block, job, entered, block, private)
        for together, _ in zip(group, pool.map(work, boxes, sums), strict=True):
            watch(len(block.labels) * len(together))
    return sums


def _add_block(
    job: Job,
    entered: ForwardPass,
    block: Block,
    private: bool,
    bounds: Mapping[str, Interval],
    sums_of_box: GradientSums,
) -> None:
    """Bound the gradients of one block's records over one box, and add them to the sums."""
    with no_grad_no_autocast():  # these modes are set per thread
        box = job.network.box(bounds)
        passed = job.network.forward(entered, box)
        outputs = job.network.outputs_of(passed, box)
        labels = block.labels.to(job.network.device)
        limits = None if block.limits is None else block.limits.to(job.network.device)
        outgoing = job.recipe.loss_function.gradient(outputs, labels)
        outgoing = outgoing.map_increasing(lambda end: end * (UNITS / job.recipe.clip))
        for name, gradient, finite in job.network.backward(passed, box, outgoing, outputs.finite):
            sums_of_box.accumulate(name, gradient, finite, private, limits)


def _blocks(job: Job, batch: int) -> Iterator[tuple[Block, bool]]:
    rows = job.block_rows
    for block in job.private.blocks(batch, rows):
        yield block, True
    if job.public is not None:
        for block in job.public.blocks(0, rows):
            yield block, False


def _update_boxes(
    job: Job, step: int, together: SharedBox, sums_of_box: GradientSums
) -> list[tuple[ReachableBoxes, tuple[Growth, ...]]]:
    """Take the step at all distances that share one box.

    The distances run one after the other because reading the bounds sorts the selection in place.
    """
    with no_grad_no_autocast():  # these modes are set per thread
        return [_update_box(job, step, sums_of_box, reachable) for reachable in together]


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
