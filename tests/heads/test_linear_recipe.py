"""The recipe of a head: checked numbers, and defaults from public numbers alone."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

import holdfast as hf
from holdfast.heads.recipe import needed_distance


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip": 0.0}, "clip=0.0"),
        ({"clip": float("inf")}, "clip=inf"),
        ({"clip": 2.0}, "at most radius"),
        ({"travel": -1.0}, "travel=-1.0"),
        ({"travel": "far"}, "travel='far'"),
        ({"growth": 0.5}, "growth=0.5"),
        ({"radius": float("nan")}, "radius=nan"),
        ({"batches": 0}, "batches=0"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"seed": -1}, "seed=-1"),
        ({"scale": 0.0}, "scale=0.0"),
        ({"travel": 1e-300}, "travel=1e-300"),
        ({"radius": 1e30}, "radius=1e+30"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
    ],
    ids=str,
)
def test_bad_numbers_are_named(settings: dict, message: str) -> None:
    with pytest.raises(hf.errors.InvalidInput) as caught:
        hf.LinearRecipe(**settings)
    assert message in str(caught.value)


def make(**changes: object) -> hf.LinearRecipe:
    about = {"records": 10_000, "features": 30, "classes": 2, "queries": 100}
    return hf.LinearRecipe.for_budget(**{**about, "budget": hf.Budget(1.0, 1e-5), **changes})


def test_the_default_follows_the_budget() -> None:
    usual = make()
    assert usual.batch_size == 10_000
    assert make(budget=hf.Budget(10.0, 1e-5)).travel > usual.travel
    assert make(queries=1).travel > usual.travel
    assert make(records=1000).travel < usual.travel
    assert make(records=10**6).clip > usual.clip
    assert make(classes=10).travel < usual.travel
    assert make(classes=40).batch_size == 10_000
    assert make(neighbours="replace").travel < usual.travel
    assert make(neighbours="replace") == replace(make(records=5000), batch_size=10_000)
    with pytest.warns(hf.errors.HoldfastWarning, match="mostly noise"):
        assert make(budget=hf.Budget(0.01, 1e-9), queries=10**6).travel >= 1.0
    assert make(budget=hf.Budget(1.0)).travel > 1.0
    assert make(seed=7).seed == 7


def test_only_public_numbers_are_asked_for() -> None:
    names = set(inspect.signature(hf.LinearRecipe.for_budget).parameters)
    wanted = {"records", "features", "classes", "budget", "queries", "neighbours", "seed"}
    assert names == wanted


@pytest.mark.parametrize(
    "settings", [{"records": 0}, {"classes": 1}, {"budget": 1.0}, {"queries": 0}], ids=str
)
def test_bad_goals_are_named(settings: dict) -> None:
    with pytest.raises(hf.errors.InvalidInput, match=next(iter(settings))):
        make(**settings)


@pytest.mark.parametrize(("epsilon", "queries"), [(10.0, 1), (10.0, 100), (1.0, 100)])
@pytest.mark.parametrize("classes", [2, 10])
def test_the_needed_distance_is_that_of_the_tables(
    epsilon: float, queries: int, classes: int
) -> None:
    table = hf.BudgetedResponse(hf.Budget(epsilon, 1e-5), queries).table(classes)
    exact = next(k for k, row in enumerate(table.rows) if row / 2**128 < 0.01)
    assert abs(needed_distance(hf.Budget(epsilon, 1e-5), queries, classes) - exact) <= 1
