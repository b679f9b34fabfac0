"""Broken variants of a release: each claims more than it keeps, and is caught."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from holdfast.accounting.renyi import least_scale_for_budget
from holdfast.heads import descent, release
from holdfast.heads.ball import make_ball
from holdfast.heads.release import Grid
from holdfast.mechanisms.table import SYSTEM

from ...heads.cases import Task
from ...soundness.test_heads import recipe
from ..test_release import BUDGET, distance, neighbours, true_delta

pytestmark = [
    pytest.mark.usefixtures("no_shape_checks"),
    pytest.mark.filterwarnings("ignore:NOT private"),
]


def worst_delta(task: Task, size: int, claimed: float | None = None, pairs: int = 40) -> float:
    """Return the largest true delta over pairs of neighbours, for noise that BUDGET asks for."""
    worst = 0.0
    for seed in range(pairs):
        first, second = neighbours(task, size, seed)
        grid = Grid.of(claimed or first.ball.sensitivity, first.weights.numel())
        scale = least_scale_for_budget(grid.sensitivity, BUDGET, grid.entries)
        apart = float(distance(first, second)) ** 0.5 / float(grid.spacing)
        worst = max(worst, true_delta(int(apart), scale))
    return worst


def test_the_sensitivity_of_one_head_for_several() -> None:
    task = Task(recipe(clip=0.05, batch_size=100), classes=3, multiclass="softmax", ties=True)
    head, _ = neighbours(task, 4, 0)
    loss = head.scheme.loss(head.recipe)
    single = make_ball(
        head.recipe,
        replace(loss, gradient=head.recipe.clip),
        head.neighbours,
        batch_size=100.0,
        width=head.inputs.width,
        offset_limit=0.0,
    )
    assert worst_delta(task, 4) <= BUDGET.delta
    assert worst_delta(task, 4, claimed=single.sensitivity) > BUDGET.delta


def test_the_private_count_as_normaliser(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(recipe(batch_size=40, clip=0.6))
    assert worst_delta(task, 8) <= BUDGET.delta
    monkeypatch.setattr(
        descent, "inverse_normaliser", lambda records, size, growth: 1.0 / max(records, 1)
    )
    assert worst_delta(task, 8) > BUDGET.delta


def repeats_with_a_seed(grid: Grid) -> bool:
    """Return whether somebody who knows the program's seeds knows the release."""
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        found.append(grid.add_noise(np.zeros((1, 4)), grid.sensitivity, SYSTEM).tolist())
    return found[0] == found[1]


def test_noise_by_an_ordinary_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid.of(0.5, 4)
    assert not repeats_with_a_seed(grid)
    monkeypatch.setattr(
        release,
        "draw_discrete_gaussian",
        lambda scale, _: round(float(torch.randn((), dtype=torch.float64)) * scale),
    )
    assert repeats_with_a_seed(grid)


def adversarial_weights(grid: Grid, sensitivity: float) -> tuple[np.ndarray, np.ndarray]:
    """Return weights at most `sensitivity` apart, on both sides of the middle between grid points.

    If the grid is fine, they are as far apart as allowed instead.
    """
    step = sensitivity / grid.entries**0.5 * (1 - 2.0**-30)
    middle = float(grid.spacing) / 2
    first = np.full((1, grid.entries), np.nextafter(middle, 0.0) if step > 2.0**-60 else 0.0)
    return first, first + step


def grid_delta(grid: Grid, sensitivity: float) -> float:
    """Return the true delta between adversarial weights, rounded to the grid."""
    first, second = (
        [round(Fraction(weight) / grid.spacing) for weight in weights[0].tolist()]
        for weights in adversarial_weights(grid, sensitivity)
    )
    square = sum((a - b) ** 2 for a, b in zip(first, second, strict=True))
    scale = least_scale_for_budget(grid.sensitivity, BUDGET, grid.entries)
    return true_delta(int(Fraction(square**0.5)), scale)


def test_a_grid_that_is_not_counted() -> None:
    sensitivity, entries = 0.01, 400
    assert grid_delta(Grid.of(sensitivity, entries), sensitivity) <= BUDGET.delta
    coarse = Grid(3, entries, 1)  # spacing 1/8: a sensitivity of 0.01 rounds up to one unit
    assert grid_delta(coarse, sensitivity) > BUDGET.delta
    counted = replace(coarse, sensitivity=1 + 20)  # half a unit per entry, in both data sets
    assert grid_delta(counted, sensitivity) <= BUDGET.delta
