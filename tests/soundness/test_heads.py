"""Heads retrained on real neighbours: weights stay in the ball, labels and distances hold.

Sampling proves nothing by itself: the argument why nothing else can happen is in
docs/theory/linear-heads.md. These tests would catch a slip in it or in the code.
"""

from __future__ import annotations

import numpy as np
import pytest

import holdfast as hf

from ..heads.cases import Task, violations

pytestmark = [
    pytest.mark.usefixtures("no_shape_checks"),
    pytest.mark.filterwarnings("ignore:NOT private"),
]


def recipe(**settings: object) -> hf.LinearRecipe:
    return hf.LinearRecipe(**{"batch_size": 20, "travel": 10.0, "clip": 0.3, **settings})


TASKS = {
    "two classes": Task(recipe()),
    "replace": Task(recipe(), neighbours="replace"),
    "large clip": Task(recipe(clip=1.2)),
    "weight decay": Task(recipe(weight_decay=0.1)),
    "batches": Task(recipe(batches=3, batch_size=7, weight_decay=0.05)),
    "batches, replace": Task(recipe(batches=2, batch_size=10), neighbours="replace"),
    "more records than foreseen": Task(recipe(batch_size=2, growth=1.0)),
    "far more records": Task(recipe(batch_size=1, growth=2.0, clip=0.6)),
    "offset": Task(recipe(), offset=True),
    "long": Task(recipe(travel=300.0, growth=2.0)),
    "one step": Task(recipe(travel=0.1)),
    "ties": Task(recipe(batch_size=2**50, travel=0.1, clip=0.1), ties=True, width=1),
    "ties, many steps": Task(recipe(batch_size=2**50, clip=0.1), ties=True, width=1),
    "near ties": Task(recipe(batch_size=2**30, clip=0.1), ties=True, width=2),
    "ties, replace": Task(
        recipe(batch_size=2**50, clip=0.1), ties=True, width=1, neighbours="replace"
    ),
    "three classes": Task(recipe(), classes=3),
    "four classes, replace": Task(recipe(), classes=4, neighbours="replace"),
    "three classes, offset": Task(recipe(), classes=3, offset=True),
    "one-vs-rest": Task(recipe(), classes=3, multiclass="one_vs_rest"),
    "one-vs-rest, replace": Task(
        recipe(), classes=4, multiclass="one_vs_rest", neighbours="replace"
    ),
    "softmax": Task(recipe(), classes=3, multiclass="softmax"),
    "softmax, replace": Task(recipe(), classes=4, multiclass="softmax", neighbours="replace"),
    "softmax, large clip, offset": Task(
        recipe(clip=1.2), classes=3, multiclass="softmax", offset=True
    ),
}
CHAINS, MOVES = 25, 4


@pytest.mark.parametrize("name", TASKS)
def test_retrained_neighbours(name: str, figures: dict[str, str]) -> None:
    task = TASKS[name]
    for seed in range(CHAINS):
        chance = np.random.default_rng([seed, len(name)])
        records = task.records(int(chance.integers(1, 50)), chance)
        assert violations(task, records, MOVES, chance) == []
    figures["heads retrained on neighbours, zero slack"] = f"{len(TASKS) * CHAINS * MOVES:,}"


def test_the_bound_is_attained() -> None:
    """With clip <= radius / 2, records that all oppose a new one move the weights by k c."""
    settings = recipe(batch_size=10**6, clip=0.3, travel=1.0)
    x = np.ones((20, 1))
    one = hf.train_linear(x, [1] * 20, settings, classes=2, ids=range(20), progress=False)
    k = 5
    more = hf.train_linear(
        np.ones((20 + k, 1)), [1] * 20 + [0] * k, settings, classes=2, ids=range(25), progress=False
    )
    moved = float((one.weights - more.weights).norm())
    assert moved <= one.radius(k)
    assert moved > 0.999 * one.radius(k)
