"""A training job, complete and checked, and its state after every step."""

from __future__ import annotations

import math
import secrets
import sys
from dataclasses import dataclass

from ..intervals import Interval
from ..layers import Network
from ..records import Source
from ..relations import Neighbours
from .bounds import ParameterBounds
from .optimizer import ReachableBoxes
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
