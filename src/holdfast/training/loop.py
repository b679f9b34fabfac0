"""The loop: for every step, every block of records and every distance, bound the gradient and move the box.

Distances share the passes over the data; where they stand at the same box, as all do before the first step, they share
the work too. The box of distance 0 holds one model: that model *is* the trained model,
so soundness is nesting and needs no analysis of rounding errors (docs/theory/floating-point.md).
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

from torch import Tensor

from ..intervals import Interval, mean_width
from ..kernels import UNITS
from ..layers import ForwardPass, Network
from ..progress import Watch
from ..records import Block, Source
from ..relations import Neighbours
from ..workers import no_grad_no_autocast, workers
from .bounds import ParameterBounds, nominal
from .gradient_bounds import Tally, selection_bytes
from .optimizer import Reach, advance, saturated
from .recipe import Recipe

_SELECTION_MEMORY = 2**28  # bytes; distances whose selections do not fit together take another pass over the data


@dataclass(frozen=True)
class Growth:
    """What a step did to one parameter's box, at the middle distance."""

    step: int
    parameter: str
    width: float  # mean width of the box after the step
    spread: float  # mean width of the step's gradient that stems from the box before it
    moves: float  # width of the step's gradient that stems from the moves on this batch

    def __post_init__(self) -> None:
        for name in ("width", "spread", "moves"):
            if not math.isfinite(getattr(self, name)):  # a width of the largest floats: nothing else may stop on its account
                object.__setattr__(self, name, sys.float_info.max)


@dataclass(frozen=True)
class State:
    """Where training stands after `step` steps."""

    run_id: str
    step: int
    reaches: tuple[Reach, ...]
    growth: tuple[Growth, ...] = ()
    overflowed: int = 0  # most records of a step that overflowed at the farthest distance


@dataclass(frozen=True)
class Job:
    """All that decides the outcome of training, checked and complete."""

    network: Network
    recipe: Recipe
    neighbours: Neighbours
    distances: tuple[int, ...]  # without 0
    private: Source
    public: Source | None = None

    @property
    def block_rows(self) -> int:
        """Records propagated at a time: small enough for the cache, no larger than the (public) batch size calls for."""
        assert self.recipe.batch_size is not None
        return min(self.network.block_rows, max(16, 1 << (self.recipe.batch_size - 1).bit_length()))

    def start(self) -> State:
        """Every box holds the initial model only."""
        box = {name: Interval.point(self.network.parameters[name]) for name in self.network.trainable}
        return State(new_run_id(), 0, tuple(Reach(ParameterBounds(k, box)) for k in (0, *self.distances)))


def new_run_id() -> str:
    """Draw the name of a training run, at random.

    Guarantees:
        It tells nothing about the records: a run on changed records and a run on the same ones have names
        that are equally unlike the name of the run before.
    """
    return secrets.token_hex(16)


def middle(distances: tuple[int, ...]) -> int | None:
    """The distance whose growth is recorded for diagnosis."""
    return distances[len(distances) // 2] if distances else None


def run(job: Job, state: State, watch: Watch | None = None) -> Iterator[State]:
    """Train from `state` to the end, yielding the state after every step; `watch` is told of pairs of a record and a distance."""
    with workers() as pool:
        while state.step < job.recipe.steps:
            with no_grad_no_autocast():
                state = _step(job, state, watch or (lambda amount: None), pool)
                nominal(state.reaches[0].bounds)
            yield state


def _step(job: Job, state: State, watch: Watch, pool: ThreadPoolExecutor) -> State:
    batch = state.step % job.recipe.batches
    reaches: list[Reach] = []
    growth, overflowed = state.growth, state.overflowed
    for group in _groups(job, state, batch):
        tallies = _tally(job, group, batch, watch, pool)
        for moves in pool.map(partial(_moves, job, state.step), group, tallies):
            for moved, grown in moves:
                reaches.append(moved)
                if moved.bounds.distance == middle(job.distances):
                    growth = growth + grown
        overflowed = max(overflowed, *(count for tally in tallies for count in tally.overflowed.values()))
    return State(state.run_id, state.step + 1, tuple(reaches), growth, overflowed)


Together = Sequence[Reach]
"""Reaches of growing distance whose boxes are one and the same."""


def _groups(job: Job, state: State, batch: int) -> Iterator[list[Together]]:
    """Distances that share one pass over the batch."""
    group: list[Together] = []
    held = 0
    parameters = {name: job.network.parameters[name] for name in job.network.trainable}
    for _, same in groupby(state.reaches, lambda reach: id(reach.bounds.box)):
        together = list(same)
        size = selection_bytes(parameters, job.neighbours, together[-1].bounds.distance, job.private.count(batch))
        if group and held + size > _SELECTION_MEMORY:
            yield group
            group, held = [], 0
        group.append(together)
        held += size
    yield group


def _tally(job: Job, group: Sequence[Together], batch: int, watch: Watch, pool: ThreadPoolExecutor) -> list[Tally]:
    """Add up the batch for every box of the group, boxes side by side on the cores."""
    parameters = {name: job.network.parameters[name] for name in job.network.trainable}
    count = job.private.count(batch)
    tallies = [Tally(parameters, job.neighbours, together[-1].bounds.distance, count) for together in group]
    boxes = [together[-1].bounds.box for together in group]
    for block, private in _blocks(job, batch):
        entered = pool.submit(job.network.first_input, block.features).result()
        work = partial(_add_block, job, entered, block.labels.to(job.network.device), private)
        for together, _ in zip(group, pool.map(work, boxes, tallies), strict=True):
            watch(len(block.labels) * len(together))
    return tallies


def _add_block(job: Job, entered: ForwardPass, labels: Tensor, private: bool, bounds: Mapping[str, Interval], tally: Tally) -> None:
    """Bound the gradients of one block's records over one box, and add them up."""
    with no_grad_no_autocast():  # of the worker's thread
        box = job.network.box(bounds)
        passed = job.network.forward(entered, box)
        outputs = job.network.outputs_of(passed, box)
        outgoing = job.recipe.loss_function.gradient(outputs, labels)
        outgoing = outgoing.map_increasing(lambda end: end * (UNITS / job.recipe.clip))
        for name, gradient, finite in job.network.backward(passed, box, outgoing, outputs.finite):
            tally.add(name, gradient, finite, private)


def _blocks(job: Job, batch: int) -> Iterator[tuple[Block, bool]]:
    rows = job.block_rows
    for block in job.private.blocks(batch, rows):
        yield block, True
    if job.public is not None:
        for block in job.public.blocks(0, rows):
            yield block, False


def _moves(job: Job, step: int, together: Together, tally: Tally) -> list[tuple[Reach, tuple[Growth, ...]]]:
    """Take the step for all distances of one tally, one after the other: a tally sorts its selection as it is read."""
    with no_grad_no_autocast():  # of the worker's thread
        return [_move(job, step, tally, reach) for reach in together]


def _move(job: Job, step: int, tally: Tally, reach: Reach) -> tuple[Reach, tuple[Growth, ...]]:
    """Take the step for one distance; the gradient leaves its whole units only here, after all sums."""
    assert job.recipe.batch_size is not None
    unit = job.recipe.clip / UNITS / job.recipe.batch_size
    box, buffers, growth = {}, {}, []
    for name in job.network.trainable:
        summed = tally.bounds(name, reach.bounds.distance)
        gradient = saturated(summed.map_increasing(lambda end: (end * unit).to(job.network.dtype)))
        box[name], buffer = advance(reach, name, gradient, job.recipe, step)
        if buffer is not None:
            buffers[name] = buffer
        spread = tally.spread(name)
        moves = mean_width(summed) - spread
        growth.append(Growth(step, name, mean_width(box[name]), spread * unit, moves * unit))
    return Reach(replace(reach.bounds, box=box), buffers), tuple(growth)
