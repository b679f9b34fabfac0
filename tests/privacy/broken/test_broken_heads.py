"""Broken variants of heads: the tests of soundness must catch each of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import holdfast as hf
from holdfast.heads import ball, descent, schemes
from holdfast.heads import loops as kernels

from ...heads.cases import Records, Task, violations

pytestmark = [
    pytest.mark.usefixtures("no_shape_checks"),
    pytest.mark.filterwarnings("ignore:NOT private"),
]

RECIPE = hf.LinearRecipe(batch_size=20, travel=10.0, clip=0.3)


def caught(task: Task, chains: int = 60, size: int = 50, moves: int = 3) -> list[str]:
    """Return what is false in some chains of moves."""
    found = []
    for seed in range(chains):
        chance = np.random.default_rng(seed)
        records = task.records(int(chance.integers(2, size)), chance)
        found += violations(task, records, moves, chance)
    return found


def test_a_ball_without_the_bound_on_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """With c' = c, exact ties fall to either side."""
    recipe = hf.LinearRecipe(batch_size=2**50, travel=10.0, clip=0.1)
    task = Task(recipe, ties=True, width=1)
    assert caught(task) == []
    monkeypatch.setattr(
        ball.Ball, "move", lambda self, norms, offsets: self.per_move * norms + 0.0 * offsets
    )
    assert any(text.startswith("P1") for text in caught(task))


def balanced(count: int) -> Records:
    """Return records with equal features, half of each class: their weights stay at 0."""
    return Records({number: [((1.0,), number % 2)] for number in range(count)})


def test_steps_above_the_learning_rate_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = hf.LinearRecipe(batch_size=200, travel=200.0, clip=1.2, growth=1.0)
    task, chance = Task(recipe, width=1, ties=True), np.random.default_rng(0)
    assert violations(task, balanced(400), 3, chance) == []
    monkeypatch.setattr(ball, "_STEP_MARGIN", 4.0)
    assert any("weights moved" in text for text in violations(task, balanced(400), 3, chance))


def test_the_private_count_as_normaliser(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(replace(RECIPE, batch_size=40, clip=0.6))
    monkeypatch.setattr(
        descent, "inverse_normaliser", lambda records, size, growth: 1.0 / max(records, 1)
    )
    assert any("weights moved" in text for text in caught(task, size=8))


def test_a_plain_normaliser_with_many_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dividing by b alone, whatever the number of records, breaks the contraction."""
    recipe = hf.LinearRecipe(batch_size=200, travel=200.0, clip=1.2, growth=1.0)
    task, chance = Task(recipe, width=1, ties=True), np.random.default_rng(0)
    assert violations(task, balanced(2000), 3, chance) == []
    monkeypatch.setattr(descent, "inverse_normaliser", lambda records, size, growth: 1.0 / size)
    assert any("weights moved" in text for text in violations(task, balanced(2000), 3, chance))


def test_an_offset_from_private_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """An offset that depends on the records moves scores by more than the ball allows."""

    class FittedOffset(Task):
        def train(self, records: Records, chance: np.random.Generator, **changes):
            rows = torch.tensor(
                [x for own in records.content.values() for x, _ in own], dtype=torch.float32
            )
            labels = torch.tensor([label for own in records.content.values() for _, label in own])
            module = torch.nn.Linear(self.width, 1)
            with torch.no_grad():
                module.weight.copy_(((2.0 * labels - 1.0) @ rows)[None])
                module.bias.zero_()
            monkeypatch.setattr(Task, "offset_module", lambda task: module)
            return super().train(records, chance, **changes)

    task = FittedOffset(replace(RECIPE, batch_size=1000), offset=True)
    assert any(text.startswith("P") for text in caught(task, 30))


def test_a_softmax_gradient_clipped_component_by_component() -> None:
    """It is not monotone: one step drives two weight matrices apart, which ours never does."""

    def clipped(weights: np.ndarray, row: np.ndarray, own: int, limit: float) -> np.ndarray:
        scores = weights @ row
        share = np.exp(scores - scores.max())
        residual = share / share.sum() - np.eye(len(weights))[own]
        return np.clip(residual, -limit, limit)[:, None] * row

    def ours(weights: np.ndarray, row: np.ndarray, own: int, limit: float) -> np.ndarray:
        partial = np.empty((1, *weights.shape))
        kernels.add_softmax_gradients(
            row, np.ones(1), np.ones(1), np.zeros((1, len(weights))), np.array([[0, 1, own]]),
            limit, weights, 0, 1, partial,
        )  # fmt: skip
        return partial[0]

    chance, worst = np.random.default_rng(0), {"clipped": 0.0, "ours": 0.0}
    for _ in range(4000):
        row = chance.normal(size=2)
        row /= np.linalg.norm(row)
        a, b = chance.normal(size=(2, 3, 2)) * 3
        own, limit, step = int(chance.integers(3)), 0.3 * chance.random(), 4.0 * chance.random()
        for name, gradient in (("clipped", clipped), ("ours", ours)):
            after = (a - step * gradient(a, row, own, limit)) - (
                b - step * gradient(b, row, own, limit)
            )
            growth = np.linalg.norm(after) / np.linalg.norm(a - b)
            worst[name] = max(worst[name], growth)
    assert worst["ours"] <= 1.0 + 1e-12
    assert worst["clipped"] > 1.01


def test_residuals_rounded_to_coarse_units() -> None:
    """A rounded residual is a step function: copies of one record expand a small difference."""
    copies, unit = 155_648, 0.3 / 4096

    def move(weight: float, rounded: bool) -> float:
        residual = 1.0 / (1.0 + np.exp(-weight)) - 1.0
        residual = float(np.clip(residual, -0.3, 0.3))
        if rounded:
            residual = np.rint(residual / unit) * unit
        normaliser = ball.inverse_normaliser(copies, copies, 8.0)
        return weight - 0.7 * normaliser * copies * residual

    start = np.linspace(1.0, 1.01, 2001)
    gaps = {
        rounded: max(abs(move(b, rounded) - move(a, rounded)) / (b - a) for a, b in pairwise(start))
        for rounded in (False, True)
    }
    assert gaps[False] <= 1.0
    assert gaps[True] > 2.0


def test_the_largest_score_without_a_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """One head per class needs the sum of both heads' moves; one of them is too little."""
    task = Task(replace(RECIPE, clip=0.1), classes=3, multiclass="one_vs_rest")
    assert caught(task, 30) == []
    honest = schemes.OneVersusRest.loss
    monkeypatch.setattr(
        schemes.OneVersusRest,
        "loss",
        lambda self, recipe: replace(honest(self, recipe), moved=recipe.clip / 4),
    )
    assert any(text.startswith("P") or "label" in text for text in caught(task, 30))
