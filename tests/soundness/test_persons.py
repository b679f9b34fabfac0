"""Whole persons are added or removed: models stay in their boxes and balls, with zero slack.

Sampling proves nothing by itself: the argument why nothing else can happen is in
docs/theory/persons.md. These tests would catch a slip in it or in the code, as they do with the
broken variants.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch

import holdfast as hf
from holdfast.heads.ball import Schedule, inverse_normaliser
from holdfast.heads.schemes import Pairs

from ..heads.cases import Task, violations
from ..heads.parts import head_blocks
from .cases import CASES
from .people import MOST, PersonCase, box_violations

prepare_module = import_module("holdfast.records.prepare")  # not the function of that name

pytestmark = [
    pytest.mark.usefixtures("no_shape_checks"),
    pytest.mark.filterwarnings("ignore:NOT private"),
]

BOXES = [PersonCase(case) for case in CASES if case.relation is hf.Neighbours.ADD_REMOVE]
BOXES += [
    PersonCase(each.case, kept=2)
    for each in BOXES
    if each.case.name in ("logistic", "saturated", "relu-minibatch")
]
BOX_SEEDS, REACH = range(6), 3


def recipe(**settings: object) -> hf.LinearRecipe:
    return hf.LinearRecipe(**{"batch_size": 15, "travel": 10.0, "clip": 0.3, **settings})


HEADS = {
    "two classes": Task(recipe(), most=MOST),
    "replace": Task(recipe(), neighbours="replace", most=MOST),
    "large clip": Task(recipe(clip=1.2), most=MOST),
    "batches": Task(recipe(batches=3, batch_size=5, weight_decay=0.05), most=MOST),
    "surplus": Task(recipe(clip=1.2), most=MOST, kept=2),
    "batches, surplus": Task(recipe(batches=2, batch_size=8), most=MOST, kept=3),
    "more persons than foreseen": Task(recipe(batch_size=2, growth=1.0, clip=0.6), most=MOST),
    "offset": Task(recipe(), offset=True, most=MOST),
    "ties": Task(recipe(batch_size=2**50, clip=0.1), ties=True, width=1, most=MOST),
    "clipped": Task(recipe(batch_size=10**6, clip=0.1), ties=True, width=1, most=MOST),
    "clipped, surplus": Task(
        recipe(batch_size=10**6, clip=0.1), ties=True, width=1, most=MOST, kept=2
    ),
    "three classes": Task(recipe(), classes=3, most=MOST),
    "four classes, replace": Task(recipe(), classes=4, neighbours="replace", most=MOST),
    "one-vs-rest": Task(recipe(), classes=3, multiclass="one_vs_rest", most=MOST),
    "softmax": Task(recipe(), classes=3, multiclass="softmax", most=MOST),
}
CHAINS, MOVES = 15, 4


def head_violations(task: Task, chains: int) -> list[str]:
    found = []
    for seed in range(chains):
        chance = np.random.default_rng([seed, 11])
        records = task.records(int(chance.integers(1, 30)), chance)
        found += violations(task, records, MOVES, chance)
    return found


@pytest.mark.parametrize("case", BOXES, ids=str)
def test_boxes(case: PersonCase) -> None:
    assert box_violations(case, BOX_SEEDS, REACH) == []


@pytest.mark.parametrize("name", HEADS)
def test_heads(name: str) -> None:
    assert head_violations(HEADS[name], CHAINS) == []


def test_enough_retrainings_are_planned(figures: dict[str, str]) -> None:
    boxes = len(BOXES) * len(BOX_SEEDS) * (REACH + 1)
    heads = len(HEADS) * CHAINS * MOVES
    assert boxes + heads >= 1000
    figures["persons added or removed, zero slack"] = f"{boxes} boxes, {heads} heads retrained"


def _count_as(monkeypatch: pytest.MonkeyPatch, change) -> None:
    """Make the number of records of an owner what `change` makes of the owners."""
    monkeypatch.setattr(
        prepare_module, "records_per_owner", lambda owners: change(owners).astype(np.int32)
    )


def _box(name: str, kept: int | None = None) -> PersonCase:
    return next(
        PersonCase(each.case, kept)
        for each in BOXES
        if each.case.name == name and each.case.dtype == torch.float32
    )


def test_records_clipped_one_by_one_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record of a person at the full clip: a person moves a step by up to six clips."""
    _count_as(monkeypatch, lambda owners: np.ones(len(owners)))
    assert box_violations(_box("saturated"), BOX_SEEDS)
    assert head_violations(HEADS["two classes"], 4)


def test_batches_by_record_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of one person move several batches, each by what a whole person may."""
    right = prepare_module.assign_parts

    def by_record(codes, parts, seed, purpose):
        own = [code + bytes([row % 256]) for row, code in enumerate(codes)]
        return right(own, parts, seed, purpose)

    _count_as(monkeypatch, lambda owners: np.ones(len(owners)))
    monkeypatch.setattr(prepare_module, "assign_parts", by_record)
    assert box_violations(_box("relu-minibatch"), range(12))
    assert head_violations(HEADS["batches"], 4)


def test_a_share_that_depends_on_other_persons_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every person gets the mean number of records: one more person changes all shares."""

    def mean(owners: list[bytes]) -> np.ndarray:
        return np.full(len(owners), -(-len(owners) // max(1, len(set(owners)))))

    _count_as(monkeypatch, mean)
    assert box_violations(_box("saturated"), BOX_SEEDS)
    assert head_violations(HEADS["clipped"], CHAINS)


def test_surplus_by_row_order_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same records in another order are then other records."""

    def first_rows(owners, most, contents, seed):
        seen: dict[bytes, int] = {}
        rows = []
        for row, owner in enumerate(owners):
            seen[owner] = seen.get(owner, 0) + 1
            if seen[owner] <= most:
                rows.append(row)
        return rows

    monkeypatch.setattr(prepare_module, "used_records", first_rows)
    assert box_violations(_box("saturated", kept=2), BOX_SEEDS)
    assert head_violations(HEADS["clipped, surplus"], 4)


def test_heads_that_clip_each_record_at_its_share_are_caught() -> None:
    """Records clipped at clip / m and added up, not averaged, curve the loss m times as much.

    A step then drives heads apart, although it moves by no more than one clip per person.
    """
    recipe = hf.LinearRecipe(batch_size=2, growth=1.0, clip=1.2, travel=5.5)
    scheme, persons, m = Pairs(2), 4, 2
    schedule = Schedule.of(recipe, scheme.loss(recipe).curvature)
    rows, norms = np.full((persons * m, 1), recipe.radius), np.full(persons * m, recipe.radius)
    zero = np.zeros(persons * m, dtype=np.int64)

    def expansion(shares: float, norms: np.ndarray) -> float:
        """Return how far one step drives two heads near 0 apart, as a factor."""
        records = head_blocks(
            rows,
            norms,
            np.full(persons * m, shares),
            np.zeros((persons * m, 1)),
            zero,
            zero,
            zero,
            1,
        ).window(0, 1)
        after = []
        for weights in (np.full((1, 1), -0.03), np.full((1, 1), -0.01)):
            partial = np.empty((1, 1, 1))
            scheme.add_gradients(recipe, records, weights, range(1), partial)
            factor = schedule.size * inverse_normaliser(persons, 2.0, recipe.growth)
            after.append(float((weights - factor * partial[0])[0, 0]))
        return abs(after[1] - after[0]) / 0.02

    assert expansion(1.0, m * norms) > 2.5  # the limit clip / (m norm), without a mean
    assert expansion(1 / m, norms) <= 1.0
