"""Balls: how far one record can move the weights of a linear head, from public numbers alone.

A step on a convex loss does not drive two heads apart if its size is below a limit, and a smooth
normaliser bounds what one record adds to a step. So k moves change the weights by at most k times a
constant, for any number of steps and of records (docs/theory/linear-heads.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..relations import Neighbours
from .loops import BLOCK_RECORDS
from .recipe import LinearRecipe

MAX_STEPS = 10_000_000
OFFSET_LIMIT = 50.0
"""Public offsets are clamped to plus or minus this."""

FARTHEST = 10**9
"""The largest distance; up to it, rounding the quotient of margin and step is covered."""

_UNIT = 2.0**-53
_SLACK = 1.0 + 2.0**-20  # in every distance, for the rounding of the quotient
_STEP_MARGIN = 1.0 - 2.0**-18  # below the limit of the step size, for norms that exceed the radius


@dataclass(frozen=True)
class Schedule:
    """Steps of one size: `count` of them, of `size` each, after which weights shrink by `decay`."""

    count: int
    size: float
    decay: float
    batches: int

    @classmethod
    def of(cls, recipe: LinearRecipe, curvature: float) -> Schedule:
        """Return the fewest steps that satisfy the learning-rate condition.

        The condition is size * (growth * curvature + 2 * weight_decay) <= 2, with the largest
        second derivative of a record's loss as `curvature`.

        Raises:
            InvalidInput: If there would be too many steps.
        """
        limit = 2.0 * _STEP_MARGIN / (recipe.growth * curvature + 2.0 * recipe.weight_decay)
        count = recipe.batches * math.ceil(recipe.travel / (limit * recipe.batches))
        if count > MAX_STEPS:
            raise InvalidInput(
                f"travel={recipe.travel!r}, batches={recipe.batches}: this takes more than "
                f"{MAX_STEPS:,} steps; lower travel, growth or batches"
            )
        size = recipe.travel / count
        return cls(count, size, 1.0 - size * recipe.weight_decay, recipe.batches)

    def undecayed(self) -> float:
        """Return a bound on the sum of decay^i over all steps: of steps that are not forgotten."""
        return self.count if self.decay == 1.0 else min(self.count, 1.01 / (1.0 - self.decay))

    def total(self) -> float:
        """Return the sum of the sizes of one batch's steps, each decayed by all later steps.

        It is the largest of the batches: that of the last step.
        """
        rounds = self.count // self.batches
        if self.decay == 1.0:
            return self.size * rounds
        later = self.decay ** (self.batches * np.arange(rounds, dtype=np.float64))
        return self.size * float(later.sum()) * (1.0 + 2.0**-30)


def inverse_normaliser(count: float, batch_size: float, growth: float) -> float:
    """Return 1 / N(count), the factor that a sum over `count` records or persons is multiplied by.

    Guarantees:
        In real numbers, count / N(count) <= growth. A sum of norm at most `count`, times 1 / N,
        changes by at most w / batch_size if a vector of norm at most w enters or leaves the sum
        and w enters or leaves the count.
    """
    if count <= 2 * growth * batch_size:
        return 1 / batch_size - count / (4 * growth * batch_size * batch_size)
    return growth / count


def curvature(clip: float, radius: float) -> float:
    """Return the largest second derivative of the logistic loss whose gradient is clipped.

    It is radius^2 / 4; a gradient clipped at clip <= radius / 2 is constant where the loss is most
    curved, and clip * (radius - clip) bounds the rest.
    """
    return clip * (radius - clip) if clip <= radius / 2 else radius * radius / 4


@dataclass(frozen=True)
class Ball:
    """How far one move can change a score, or a difference of scores, of one head.

    Args:
        sensitivity: The distance by which one move changes the computed weights of the head.
        per_move: The distance by which one move changes the weights behind a compared score, or a
            compared difference of scores, in real numbers.
        rounding: A bound on the effect of rounding on those weights, in both data sets together.
        weight_norm: A bound on the norm of the weights.
        width: The number of weights.
        terms: The number of scores that are compared: 1, or 2 for a difference.
    """

    sensitivity: float
    per_move: float
    rounding: float
    weight_norm: float
    width: int
    terms: int

    def move(self, norms: NDArray[np.float64], offsets: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the most by which one move changes the computed score of each query.

        `norms` are the norms of the queries' features, and `offsets` bounds their offsets.

        Guarantees:
            It depends only on the query and on public numbers.
        """
        evaluation = 2.0 * self.terms * _gamma(self.width + 3)
        largest = (self.per_move + self.rounding) * norms + evaluation * (
            self.weight_norm * norms + offsets
        )
        return np.asarray(largest * _SLACK)


@dataclass(frozen=True)
class HeadLoss:
    """What the ball needs to know of a loss, as functions of the recipe's public numbers.

    Args:
        gradient: The largest norm of a record's gradient.
        moved: The largest norm by which a record's gradient changes the weights behind a compared
            score, or a compared difference of scores.
        curvature: The largest second derivative along any direction.
        slope: The Lipschitz constant of the residuals in the scores, times the square root of the
            number of scores.
        evaluation: A bound on the error of computing the residuals from the scores, in roundings.
        terms: The number of scores that are compared: 1, or 2 for a difference.
    """

    gradient: float
    moved: float
    curvature: float
    slope: float
    evaluation: float
    terms: int


def make_ball(
    recipe: LinearRecipe,
    loss: HeadLoss,
    relation: Neighbours,
    *,
    batch_size: float,
    width: int,
    offset_limit: float,
) -> Ball:
    """Return the ball of a head with this loss and normaliser; see docs/theory/linear-heads.md.

    Args:
        recipe: The recipe.
        loss: The loss.
        relation: The neighbour relation.
        batch_size: The normaliser of this head.
        width: The number of weights per score.
        offset_limit: A bound on the offsets; 0 if there are none.
    """
    schedule = Schedule.of(recipe, loss.curvature)
    units = 2.0 if relation.exchanges else 1.0  # an exchange moves two records or persons
    travel = units * schedule.total() / batch_size
    steps, reach = schedule.count, schedule.size * recipe.growth
    most = 1.01 * reach * loss.gradient  # the largest change of the weights in one step
    norms = most * steps * (steps - 1) / 2.0  # the sum, over steps, of bounds on the weights' norm
    scores = _gamma(width + 8) * (offset_limit * steps + norms * recipe.radius)
    residuals = recipe.radius * (loss.slope * scores + loss.evaluation * _UNIT * steps)
    sums = loss.gradient * (_gamma(BLOCK_RECORDS + 16) + (width + 6) * _UNIT) * steps
    errors = 1.01 * reach * (residuals + sums) + 5.0 * _UNIT * (norms + most * steps)
    return Ball(
        sensitivity=(travel * loss.gradient + 2.0 * errors) * _SLACK,
        per_move=travel * loss.moved,
        rounding=2.0 * loss.terms * errors,
        weight_norm=most * schedule.undecayed(),
        width=width,
        terms=loss.terms,
    )


def _gamma(count: int) -> float:
    """Return the relative error bound of `count` roundings."""
    return count * _UNIT / (1.0 - count * _UNIT)
