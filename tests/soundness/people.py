"""Data sets of persons with several records each, and moves of whole persons."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.networks.certified import Certified
from holdfast.networks.loop import run
from holdfast.networks.training import prepare_jobs

from .cases import Case

MOST = 6  # records per person
Owned = tuple[Tensor, Tensor]  # the features and labels of one person
People = dict[int, Owned]


@dataclass(frozen=True)
class PersonCase:
    """A case whose records belong to persons."""

    case: Case
    kept: int | None = None  # max_records_per_person

    def __str__(self) -> str:
        return f"{self.case}-{'all' if self.kept is None else self.kept}"

    def owned(self, generator: torch.Generator, kind: int) -> Owned:
        """Return the records of a new person; `kind` decides how hostile they are."""
        count = int(torch.randint(1, MOST + 1, (1,), generator=generator))
        y = torch.randint(0, self.case.classes, (count,), generator=generator)
        x = self.case.features(y, generator)
        if kind == 1:  # outliers, all alike
            return x[:1].expand_as(x).clone() * 40, y[:1].expand_as(y).clone()
        if kind == 2:  # flipped labels
            return self.case.features((y + 1) % self.case.classes, generator), y
        if kind == 3:  # saturate the clip in every entry, with one label
            return torch.sign(x[:1]).expand_as(x).clone() * 1e4, y[:1].expand_as(y).clone()
        return x, y

    def people(self, seed: int, count: int = 20) -> People:
        generator = torch.Generator().manual_seed(seed)
        return {number: self.owned(generator, 0) for number in range(count)}

    def moved(self, people: People, moves: int, seed: int) -> People:
        """Return a data set that is at most `moves` moves away."""
        generator = torch.Generator().manual_seed(1000 + seed)
        people = dict(people)
        for move in range(moves):
            if len(people) > 1 and int(torch.randint(0, 2, (1,), generator=generator)):
                leaving = int(torch.randint(0, len(people), (1,), generator=generator))
                del people[list(people)[leaving]]
            else:
                people[10_000 + 10 * seed + move] = self.owned(generator, seed % 4)
        return people

    def train(self, model: nn.Module, people: People, seed: int, reach: int) -> Certified:
        """Train with boxes, on the records in a random order."""
        x, y, settings = self._arguments(people, seed, reach)
        return hf.train(model, x, y, self._recipe(), progress=False, **settings)

    def retrain(self, model: nn.Module, people: People, seed: int) -> Certified:
        """Train without boxes, that is, only at distance 0."""
        x, y, settings = self._arguments(people, seed, 1)
        names = ("persons", "max_records_per_person")
        data = hf.Dataset(x, y, **{name: settings.pop(name, None) for name in names})
        (job,) = prepare_jobs([model], data, self._recipe(), **settings)
        job = replace(job, distances=())
        *_, state = run(job, job.start())
        ladder = tuple(boxes.bounds for boxes in state.boxes)
        return Certified(
            job.network,
            job.recipe,
            job.neighbours,
            ladder,
            "default",
            data.record_shape,
            (),
            state.run_id,
        )  # fmt: skip

    def _recipe(self) -> hf.Recipe:
        recipe = self.case.full_recipe()
        return replace(recipe, batch_size=max(1, 20 // recipe.batches))

    def _arguments(
        self, people: People, seed: int, reach: int
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        x = torch.cat([x for x, _ in people.values()])
        y = torch.cat([y for _, y in people.values()])
        owners = [number for number, (_, y) in people.items() for _ in y]
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
        settings = {
            "persons": [owners[row] for row in order.tolist()],
            "max_records_per_person": self.kept,
            "max_distance": reach,
        }
        return x[order], y[order], settings


def box_violations(case: PersonCase, seeds: range, reach: int = 3) -> list[str]:
    """Return every claim on boxes that is false for moves of whole persons."""
    found = []
    for seed in seeds:
        model, people = case.case.model(seed=0), case.people(seed)
        here = case.train(model, people, seed, reach)
        queries = case.case.queries(seed)
        certificate = here.certify(queries)
        for moves in range(1, reach + 1):
            there = case.retrain(model, case.moved(people, moves, seed), seed + 1)
            if not here.bounds(moves).encloses(there.bounds(0)):
                found.append(f"a retrained model left the box of distance {moves}, seed {seed}")
            stable = certificate.distances >= moves
            if not torch.equal(there.predict(queries)[stable], certificate.labels[stable]):
                found.append(f"a stable label changed within {moves} moves, seed {seed}")
        found += _nesting_violations(case, here, people, seed, reach)
    return found


def _nesting_violations(
    case: PersonCase, here: Certified, people: People, seed: int, reach: int
) -> list[str]:
    found = []
    there = case.train(case.case.model(seed=0), case.moved(people, 1, seed), seed + 2, reach)
    for k in range(1, reach + 1):
        if not (
            here.bounds(k).encloses(there.bounds(k - 1))
            and there.bounds(k).encloses(here.bounds(k - 1))
        ):
            found.append(f"the boxes of neighbours do not nest at distance {k}, seed {seed}")
    queries = case.case.queries(seed)
    one, other = here.certify(queries), there.certify(queries)
    if int((one.distances - other.distances).abs().max()) > 1:
        found.append(f"P1, seed {seed}")
    stable = (one.distances >= 1) | (other.distances >= 1)
    if not torch.equal(one.labels[stable], other.labels[stable]):
        found.append(f"P2, seed {seed}")
    return found
