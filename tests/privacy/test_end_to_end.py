"""End to end on tiny data: train, certify, release, and compare all neighbouring data sets exactly.

Records are binary, (x, y) with x in {0, 1}, so every data set of up to 8 records and each of its
neighbours can be trained. An adversary asks up to 3 queries, each chosen after the previous
answers; the most it can gain is computed exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from importlib import import_module

import pytest
import torch

import holdfast as hf

from .checker import adaptive_excess, exp_lower

prepare_module = import_module("holdfast.records.prepare")  # not the function of that name

pytestmark = pytest.mark.usefixtures("no_shape_checks")

KINDS = ((0, 0), (0, 1), (1, 0), (1, 1))
QUERIES = torch.tensor([[0.0], [1.0], [0.4], [3.0]])
ASKS = 3

DataSet = tuple[int, ...]  # kinds of records: sorted under add_remove, by id under replace
State = tuple[tuple[int, int], ...]  # label and distance of every query


def model() -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(1, 2))


@dataclass(frozen=True, eq=False)
class World:
    """All data sets, how they are trained, and their certificates."""

    relation: str
    batches: int
    distances: dict = field(default_factory=lambda: {"max_distance": 3})
    as_distance: Callable[[int], int] = field(default=lambda rank: rank)
    largest: int = 8  # records
    head: bool = False  # whether a linear head is trained, not a network

    def data_sets(self) -> list[DataSet]:
        if self.relation == "replace":
            return list(itertools.product(range(4), repeat=4))
        return [
            data
            for size in range(1, self.largest + 1)
            for data in itertools.combinations_with_replacement(range(4), size)
        ]

    def neighbours(self, data: DataSet) -> list[DataSet]:
        """Return the data sets with one record exchanged, or with one more record."""
        if self.relation == "replace":
            return [
                (*data[:i], kind, *data[i + 1 :])
                for i in range(len(data))
                for kind in range(4)
                if kind != data[i]
            ]
        return (
            [tuple(sorted((*data, kind))) for kind in range(4)] if len(data) < self.largest else []
        )

    @cache  # noqa: B019 (worlds live as long as the tests)
    def state(self, data: DataSet) -> State:
        x = torch.tensor([[float(KINDS[kind][0])] for kind in data])
        y = torch.tensor([KINDS[kind][1] for kind in data])
        recipe = hf.Recipe(
            epochs=2,
            learning_rate=2.0,
            decay=2.0,
            clip=0.1,
            batches=self.batches,
            batch_size=5,
            seed=1,
        )
        ids = list(range(len(data))) if self.relation == "replace" else None
        settings = {"neighbours": self.relation, "ids": ids, "progress": False, **self.distances}
        trained: hf.models.CertifiedModel
        if self.head:
            linear = hf.LinearRecipe(
                travel=6.0, clip=0.3, batches=self.batches, batch_size=5, seed=1, scale=1.0
            )
            trained = hf.train_linear(2.0 * x - 1.0, y, linear, classes=2, **settings)
            certificate = trained.certify(2.0 * QUERIES - 1.0)
        else:
            trained = hf.train(model(), x, y, recipe, **settings)
            certificate = trained.certify(QUERIES)
        return tuple(
            zip(
                certificate.labels.tolist(),
                (self.as_distance(k) for k in certificate.distances.tolist()),
                strict=True,
            )
        )

    def pairs(self) -> set[tuple[State, State]]:
        """Return the distinct pairs of states of neighbouring data sets, in both orders."""
        pairs = {
            (self.state(data), self.state(other))
            for data in self.data_sets()
            for other in self.neighbours(data)
        }
        return {pair for first, second in pairs for pair in ((first, second), (second, first))}


@dataclass(frozen=True)
class Claim:
    """A mechanism and the claimed privacy cost of three of its answers together."""

    name: str
    outcome: Callable[[int, int], list[int]]
    epsilon: Fraction
    delta: Fraction

    def __str__(self) -> str:
        return self.name


def claims() -> list[Claim]:
    pure = {
        "stable": hf.StableResponse(0.5),
        "cauchy": hf.mechanisms.CauchyResponse(0.5),
        "laplace": hf.mechanisms.LaplaceResponse(0.5),
    }
    listed = [
        Claim(name, mechanism.table().outcome, ASKS * Fraction(0.5), Fraction(0))
        for name, mechanism in pure.items()
    ]
    leaky = hf.StableResponse(0.3, 0.02)
    listed.append(
        Claim(
            "stable with delta", leaky.table().outcome, ASKS * Fraction(0.3), ASKS * Fraction(0.02)
        )
    )
    for epsilon, delta in [(1.0, 0.01), (10.0, 1e-5)]:
        budgeted = hf.BudgetedResponse(hf.Budget(epsilon, delta), ASKS)
        listed.append(
            Claim(
                f"budgeted {epsilon:g}",
                budgeted.table().outcome,
                Fraction(epsilon),
                Fraction(delta),
            )
        )
    return listed


def worst(pairs: set[tuple[State, State]], claim: Claim) -> Fraction:
    """Return the most that an adaptive adversary gains beyond e^epsilon, over all neighbours."""
    ratio = exp_lower(claim.epsilon)

    @cache
    def gain(queries: frozenset) -> Fraction:
        return adaptive_excess(
            [(claim.outcome(*here), claim.outcome(*there)) for here, there in queries], ASKS, ratio
        )

    return max(gain(frozenset(zip(first, second, strict=True))) for first, second in pairs)


WORLDS = [
    World(relation, batches, head=head)
    for head in (False, True)
    for relation in ("add_remove", "replace")
    for batches in (1, 2)
]


def _name(world: World) -> str:
    return f"{'head-' if world.head else ''}{world.relation}-{world.batches}"


@pytest.mark.filterwarnings("ignore:NOT private")
@pytest.mark.parametrize("world", WORLDS, ids=_name)
def test_all_neighbours_are_private(world: World, figures: dict[str, str]) -> None:
    pairs = world.pairs()
    states = [state for data in world.data_sets() for state in world.state(data)]
    assert {distance for _, distance in states} >= ({0, 1} if world.head else {0, 1, 2, 3})
    # Some labels change between neighbours.
    assert any(
        here[0] != there[0]
        for first, second in pairs
        for here, there in zip(first, second, strict=True)
    )
    gains = {}
    for claim in claims():
        gains[claim.name] = worst(pairs, claim)
        assert gains[claim.name] <= claim.delta, claim
    edges = sum(len(world.neighbours(data)) for data in world.data_sets())
    figures[f"end to end, {_name(world)}"] = (
        f"{len(world.data_sets())} data sets, {edges} neighbour pairs "
        f"({len(pairs) // 2} distinct), largest delta of 3 adaptive answers: "
        + ", ".join(f"{name} {float(gain):.2g}" for name, gain in gains.items())
    )


def broken_by(world: World) -> list[str]:
    pairs = world.pairs()
    return [claim.name for claim in claims() if worst(pairs, claim) > claim.delta]


def test_batches_by_row_number_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_row(ids, parts, seed, purpose):
        return torch.arange(len(ids)) % parts

    monkeypatch.setattr(prepare_module, "assign_parts", by_row)
    assert {"stable", "stable with delta", "budgeted 1"} <= set(
        broken_by(World("add_remove", 2, largest=6))
    )


def test_a_sparse_grid_as_distance_is_caught() -> None:
    grid = (0, 1, 4)
    sparse = {"distances": grid[1:]}
    assert {"stable", "stable with delta", "budgeted 1"} <= set(
        broken_by(World("add_remove", 1, sparse, lambda rank: grid[rank], largest=6))
    )
    assert not broken_by(World("add_remove", 1, sparse, largest=6))  # ranks are private
