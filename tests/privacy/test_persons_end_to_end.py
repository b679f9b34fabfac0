"""End to end per person: all data sets of up to 3 persons with up to 2 binary records each.

Train, certify, release, and compare all neighbouring data sets exactly, as test_end_to_end.py does
for records. A move adds or removes a whole person.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module

import numpy as np
import pytest
import torch

import holdfast as hf
from holdfast.records import assign_parts
from holdfast.records.ids import encode_owners

from .test_end_to_end import KINDS, QUERIES, State, claims, model, worst

prepare_module = import_module("holdfast.records.prepare")  # not the function of that name

pytestmark = [
    pytest.mark.usefixtures("no_shape_checks"),
    pytest.mark.filterwarnings("ignore:NOT private"),
]

SEED = 2
Owned = tuple[int, ...]  # the kinds of one person's records; empty if the person is absent
DataSet = tuple[Owned, ...]  # by person
OWNED: list[Owned] = [
    owned
    for count in (1, 2)
    for owned in itertools.combinations_with_replacement(range(len(KINDS)), count)
]


@dataclass(frozen=True, eq=False)
class PersonWorld:
    """All data sets of up to `persons` persons, how they are trained, and their certificates."""

    batches: int
    head: bool
    persons: int = 3

    @cached_property
    def names(self) -> list[str]:
        return [f"person {number}" for number in range(self.persons)]

    @cached_property
    def _batch(self) -> list[int]:
        codes = encode_owners(self.names, self.persons)
        found = assign_parts(codes, self.batches, SEED, b"batch").tolist()
        assert len(set(found)) == self.batches
        return found

    def _canonical(self, data: DataSet) -> DataSet:
        """Return the data set with persons of one batch sorted: their names do not matter."""
        order = sorted(range(len(data)), key=lambda person: (self._batch[person], data[person]))
        places = sorted(range(len(data)), key=lambda person: self._batch[person])
        found = list(data)
        for place, person in zip(places, order, strict=True):
            found[place] = data[person]
        return tuple(found)

    @cached_property
    def data_sets(self) -> list[DataSet]:
        every = itertools.product([(), *OWNED], repeat=self.persons)
        return sorted({self._canonical(data) for data in every if any(data)})

    def neighbours(self, data: DataSet) -> list[DataSet]:
        """Return the data sets with one person less."""
        return [
            self._canonical((*data[:person], (), *data[person + 1 :]))
            for person, owned in enumerate(data)
            if owned and any(data[:person] + data[person + 1 :])
        ]

    @cache  # noqa: B019 (worlds live as long as the tests)
    def state(self, data: DataSet) -> State:
        rows = [(person, kind) for person, owned in enumerate(data) for kind in owned]
        x = torch.tensor([[float(KINDS[kind][0])] for _, kind in rows])
        y = torch.tensor([KINDS[kind][1] for _, kind in rows])
        persons = [self.names[person] for person, _ in rows]
        settings = {"persons": persons, "max_distance": 3, "progress": False}
        if self.head:
            linear = hf.LinearRecipe(
                travel=6.0, clip=0.1, batches=self.batches, batch_size=2, seed=SEED, scale=1.0
            )
            head = hf.train_linear(2.0 * x - 1.0, y, linear, classes=2, **settings)
            certificate = head.certify(2.0 * QUERIES - 1.0)
        else:
            recipe = hf.Recipe(
                epochs=2, learning_rate=2.0, decay=2.0, clip=0.1, batches=self.batches,
                batch_size=2, seed=SEED,
            )  # fmt: skip
            certificate = hf.train(model(), x, y, recipe, **settings).certify(QUERIES)
        assert certificate.neighbours is hf.Neighbours.ADD_REMOVE_PERSON
        labels, distances = certificate.labels.tolist(), certificate.distances.tolist()
        return tuple(zip(labels, distances, strict=True))

    def pairs(self) -> set[tuple[State, State]]:
        """Return the distinct pairs of states of neighbouring data sets, in both orders."""
        pairs = {
            (self.state(data), self.state(less))
            for data in self.data_sets
            for less in self.neighbours(data)
        }
        return {pair for one, two in pairs for pair in ((one, two), (two, one))}


WORLDS = [PersonWorld(batches, head) for head in (False, True) for batches in (1, 2)]


def _name(world: PersonWorld) -> str:
    return f"{'head' if world.head else 'boxes'}-{world.batches}"


@pytest.mark.parametrize("world", WORLDS, ids=_name)
def test_all_neighbours_are_private(world: PersonWorld, figures: dict[str, str]) -> None:
    pairs = world.pairs()
    states = {state for pair in pairs for data in pair for state in data}
    assert {distance for _, distance in states} >= {0, 1}
    assert any(
        here[0] != there[0] for one, two in pairs for here, there in zip(one, two, strict=True)
    ), "no label changes between neighbours, so this test shows nothing"
    for claim in claims():
        assert worst(pairs, claim) <= claim.delta, claim
    edges = sum(len(world.neighbours(data)) for data in world.data_sets)
    figures[f"end to end per person, {_name(world)}"] = (
        f"{len(world.data_sets)} data sets, {edges} neighbour pairs ({len(pairs) // 2} distinct)"
    )


@pytest.mark.parametrize("head", [False, True], ids=["boxes", "head"])
def test_records_clipped_one_by_one_are_caught(head: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        prepare_module, "records_per_owner", lambda owners: np.ones(len(owners), np.int32)
    )
    pairs = PersonWorld(1, head, persons=2).pairs()
    assert any(worst(pairs, claim) > claim.delta for claim in claims())
