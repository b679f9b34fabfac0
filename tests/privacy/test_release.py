"""The release of a head: neighbours stay within the sensitivity, and the claim is attacked.

The argument why nothing else can happen is in docs/theory/release.md.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import holdfast as hf
from holdfast.accounting.renyi import gaussian_delta, least_scale_for_budget
from holdfast.heads.certified import CertifiedHead
from holdfast.heads.release import Grid

from ..heads.cases import Records, Task
from ..soundness.test_heads import recipe

pytestmark = [
    pytest.mark.usefixtures("no_shape_checks"),
    pytest.mark.filterwarnings("ignore:NOT private"),
]

# Numbers of records far below and far above the public normaliser b are among them.
TASKS = {
    "far fewer than b": (Task(recipe(batch_size=1000)), 5),
    "about b": (Task(recipe()), 20),
    "far more than b": (Task(recipe(batch_size=1, growth=2.0, clip=0.6)), 60),
    "far more, ties": (Task(recipe(batch_size=2), width=1, ties=True), 200),
    "ties, few": (Task(recipe(batch_size=2**50, clip=0.1), width=1, ties=True), 3),
    "replace": (Task(recipe(), neighbours="replace"), 25),
    "batches and decay": (Task(recipe(batches=3, batch_size=7, weight_decay=0.05)), 30),
    "long": (Task(recipe(travel=300.0, growth=2.0)), 30),
    "softmax": (Task(recipe(), classes=3, multiclass="softmax"), 25),
    "softmax, offset, far more": (
        Task(recipe(batch_size=3, clip=1.2), classes=4, multiclass="softmax", offset=True),
        60,
    ),
}
PAIRS = 50  # per task: 500 in all
BUDGET = hf.Budget(1.0, 1e-5)


def neighbours(task: Task, size: int, seed: int) -> tuple[CertifiedHead, CertifiedHead]:
    """Return the heads of two neighbouring data sets."""
    chance = np.random.default_rng(seed)
    records = task.records(int(chance.integers(max(1, size // 2), size + 1)), chance)
    return task.train(records, chance), task.train(records.moved(task, chance), chance)


def distance(first: CertifiedHead, second: CertifiedHead) -> Fraction:
    """Return the exact square of the Euclidean distance of all weights together."""
    pairs = zip(first.weights.flatten().tolist(), second.weights.flatten().tolist(), strict=True)
    return sum(((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs), Fraction(0))


def on_grid(grid: Grid, head: CertifiedHead) -> list[int]:
    return [round(Fraction(weight) / grid.spacing) for weight in head.weights.flatten().tolist()]


@pytest.mark.parametrize("name", TASKS)
def test_neighbours_stay_within_the_sensitivity_in_floats_and_on_the_grid(name: str) -> None:
    task, size = TASKS[name]
    moved_at_all = 0
    for seed in range(PAIRS):
        first, second = neighbours(task, size, seed)
        claimed = Fraction(first.ball.sensitivity)
        apart = distance(first, second)
        assert apart <= claimed**2
        grid = Grid.of(first.ball.sensitivity, first.weights.numel())
        moved = [a - b for a, b in zip(on_grid(grid, first), on_grid(grid, second), strict=True)]
        assert sum(step * step for step in moved) <= grid.sensitivity**2
        moved_at_all += apart > 0
    assert moved_at_all > PAIRS // 2


def farthest_neighbours() -> tuple[CertifiedHead, CertifiedHead]:
    """Return heads of one and of two equal records, with a clip that both reach in every step."""
    task = Task(recipe(batch_size=1000, travel=1.0, clip=0.05), width=1, ties=True)
    chance = np.random.default_rng(0)
    one = Records({0: [((1.0,), 1)]})
    two = Records({**one.content, 1: [((1.0,), 1)]})
    return task.train(one, chance), task.train(two, chance)


def test_the_sensitivity_is_attained() -> None:
    """The bound is not loose."""
    first, second = farthest_neighbours()
    assert float(distance(first, second)) ** 0.5 > 0.99 * first.ball.sensitivity


def true_delta(apart: int, scale: int) -> float:
    """Return the exact delta, at the budget's epsilon, between two vectors `apart` units apart."""
    return float(gaussian_delta(Fraction(apart, scale), Decimal(BUDGET.epsilon)))


def test_draws_of_neighbours_cannot_be_told_apart_better_than_claimed() -> None:
    """The best attack on draws: project on the difference, and compare with a threshold."""
    first, second = farthest_neighbours()
    grid = Grid.of(first.ball.sensitivity, first.weights.numel())
    scale = least_scale_for_budget(grid.sensitivity, BUDGET, grid.entries)
    draws = 6000
    entropy = hf.mechanisms.SeededEntropyForTests(0)

    def advantages(noise: int) -> float:
        direction = (second.weights - first.weights).numpy()
        seen = [
            np.sort(
                [
                    (grid.add_noise(head.weights.numpy(), noise, entropy) * direction).sum()
                    for _ in range(draws)
                ]
            )
            for head in (second, first)
        ]
        thresholds = np.concatenate(seen)
        above = [draws - np.searchsorted(each, thresholds) for each in seen]
        return float((above[0] - np.exp(BUDGET.epsilon) * above[1]).max() / draws)

    slack = 4.0 * np.exp(BUDGET.epsilon) / draws**0.5
    assert advantages(scale) <= BUDGET.delta + slack
    assert advantages(scale // 6) > BUDGET.delta + slack  # far too little noise is noticed
