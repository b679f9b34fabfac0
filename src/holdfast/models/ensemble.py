"""train_ensemble: members trained on disjoint parts of the records, whose vote is more stable than any of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import compress
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..certificates import Certificate, combine, count_votes, winners
from ..checks import check_integer, check_name
from ..errors import InvalidInput
from ..layers import Network
from ..ledger import Ledger
from ..preprocessing import Preprocessing
from ..records import as_features, assign_parts, check_features, check_labels, content_ids, given_ids
from ..relations import Neighbours
from ..training.loop import Job
from ..training.preparation import DEFAULTS, Options, check_class_count, prepare, preprocess, with_batch_size
from ..training.recipe import Recipe
from .certified import Certified, Part, finish


@dataclass(frozen=True, eq=False)
class CertifiedEnsemble:
    """Certified members that vote; ties go to the larger label. NOT private: releases need a mechanism."""

    members: tuple[Certified, ...]
    preprocessing: Preprocessing | None = None
    signature: str | None = None  # of the file that it was loaded from, by the owner of a ledger

    def __post_init__(self) -> None:
        kinds = {(member.dataset, member.neighbours, member.classes, member.record_shape) for member in self.members}
        if len(kinds) != 1 or len({id(member) for member in self.members}) != len(self.members):
            raise InvalidInput("members: expected different models of one data set, relation and shape, as train_ensemble makes them")
        seeds = {member.part.seed for member in self.members if member.part is not None}
        split = {Part(seed, len(self.members), index) for seed in seeds for index in range(len(self.members))}
        if len(seeds) != 1 or {member.part for member in self.members} != split:
            raise InvalidInput(
                f"members: {len(self.members)} models whose records are not the parts of one split; the distance of a vote holds only if "
                "no record is in two members; train them with train_ensemble"
            )

    @property
    def classes(self) -> int:
        return self.members[0].classes

    @property
    def neighbours(self) -> Neighbours:
        return self.members[0].neighbours

    @property
    def distances(self) -> tuple[int, ...]:
        """The distances beyond 0 that each member was run at."""
        return self.members[0].distances

    @property
    def recipe(self) -> Recipe:
        """Each member's recipe."""
        return self.members[0].recipe

    @property
    def dataset(self) -> str:
        return self.members[0].dataset

    @property
    def run_id(self) -> str:
        """The name of the training run: a hash of the members' own, which were drawn at random."""
        return hashlib.sha256("".join(member.run_id for member in self.members).encode()).hexdigest()[:32]

    def predict(self, queries: Any) -> Tensor:
        """The plain labels, one int64 a query. NOT private."""
        return winners(self.votes(queries))

    def votes(self, queries: Any) -> Tensor:
        """How many members vote for each class: (queries, classes). NOT private."""
        features = self.features(queries)
        return count_votes(torch.stack([member.predict(features) for member in self.members], 1), self.classes)

    def certify(self, queries: Any) -> Certificate:
        """For each query its label, how far the vote is stable, and the votes. NOT private."""
        return self.certify_features(self.features(queries))

    def certify_members(self, queries: Any) -> list[Certificate]:
        """Each member's own certificate. NOT private."""
        features = self.features(queries)
        return [member.certify_features(features) for member in self.members]

    def features(self, queries: Any) -> Tensor:
        """The numbers that the members see of queries, after the public rules: what is equal here is the same query."""
        return self.members[0].features(queries if self.preprocessing is None else self.preprocessing.apply(queries, "queries"))

    def certify_features(self, features: Tensor) -> Certificate:
        """`certify`, of what `features` returned."""
        return combine([member.certify_features(features) for member in self.members])

    def certify_one_by_one(self, features: Tensor) -> Certificate:
        """The same certificate, with work that does not depend on the outcome: what serves answers uses this."""
        return combine([member.certify_one_by_one(features) for member in self.members])

    def save(self, path: str | PathLike[str], ledger: Ledger | None = None) -> None:
        """Save everything that serving needs, signed with the key of `ledger` if one is given; see `Certified.save`."""
        from .saved import save

        save(self, Path(path), ledger)


def train_ensemble(
    make_model: Callable[[int], nn.Module],
    x: Any,
    y: Any,
    recipe: Recipe,
    members: int = 25,
    neighbours: Neighbours | str = "add_remove",
    max_distance: int | None = None,
    distances: Iterable[int] | None = None,
    ids: Iterable[Any] | None = None,
    public: tuple[Any, Any] | None = None,
    dataset: str = "default",
    checkpoint: str | PathLike[str] | None = None,
    progress: bool = True,
    preprocessing: Preprocessing | None = None,
    *,
    cache: str | PathLike[str] | None = None,
    trust_device: bool = False,
) -> CertifiedEnsemble:
    """Train `members` models, each on its own part of the records, and bound each for every distance.

    `make_model(seed)` makes member number `seed` (from 0). A record's member is a keyed hash of its id, independent of
    its batch. `recipe.batch_size` is the normaliser of each *member*: about records / members / batches. Under
    'replace', ids are needed. `checkpoint` and `cache`: names for files, one per member. All else as in `train`.
    """
    check_name("dataset", dataset)
    x, public = preprocess(preprocessing, x, public)
    options = Options(None if cache is None else Path(cache), trust_device, progress)
    jobs = prepare_members(make_model, x, y, recipe, members, neighbours, max_distance, distances, ids, public, options)
    check_class_count(jobs[0][0], preprocessing)
    paths = [None if checkpoint is None else f"{checkpoint}.{member}" for member in range(len(jobs))]
    trained = []
    for member, ((job, shape), path) in enumerate(zip(jobs, paths, strict=True)):
        part = Part(recipe.seed, len(jobs), member)
        trained.append(replace(finish(job, shape, dataset, path, progress, None), part=part))
    return CertifiedEnsemble(tuple(trained), preprocessing)


def prepare_members(
    make_model: Callable[[int], nn.Module],
    x: Any,
    y: Any,
    recipe: Recipe,
    members: int = 25,
    neighbours: Neighbours | str = "add_remove",
    max_distance: int | None = None,
    distances: Iterable[int] | None = None,
    ids: Iterable[Any] | None = None,
    public: tuple[Any, Any] | None = None,
    options: Options = DEFAULTS,
) -> list[tuple[Job, tuple[int, ...]]]:
    """Split the records and check every member's job, before the first is trained."""
    count, relation = check_integer("members", members, 1), Neighbours.of(neighbours)
    features = as_features(x)
    if not len(features):
        raise InvalidInput("x is empty: there is nothing to train on")
    if not isinstance(recipe, Recipe):
        raise InvalidInput(f"recipe is a {type(recipe).__name__}: expected an hf.Recipe")
    recipe = with_batch_size(recipe, relation, -(-len(features) // count), _public_count(public))
    distances = tuple(distances) if isinstance(distances, Iterable) else distances
    ids = list(ids) if isinstance(ids, Iterable) and not isinstance(ids, str | bytes) else ids
    networks = [Network.of(make_model(seed), tuple(features.shape[1:])) for seed in range(count)]
    labels = check_labels(y, len(features), recipe.loss_function.classes(networks[0].outputs))
    codes = _codes(features, labels, ids, relation, networks[0].dtype, count)
    part = assign_parts(codes, count, recipe.seed, b"member")
    jobs = []
    for member, network in enumerate(networks):
        chosen = part == member
        own = None if ids is None else list(compress(ids, chosen.tolist()))
        each = replace(options, cache=options.cache and options.cache.with_name(f"{options.cache.name}.{member}"))
        jobs.append(prepare(network.model, features[chosen], labels[chosen], recipe, relation, max_distance, distances, own, public, each))
    if len({(job.network.outputs, job.network.dtype) for job, _ in jobs}) > 1:
        raise InvalidInput("make_model: the members have different numbers of outputs or types; expected the same architecture")
    return jobs


def _public_count(public: tuple[Any, Any] | None) -> int:
    """How many public records there are; whether they are records is checked with each member."""
    return len(public[1]) if isinstance(public, tuple | list) and len(public) == 2 else 0


def _codes(
    features: Tensor, labels: Tensor, ids: Iterable[Any] | None, relation: Neighbours, dtype: torch.dtype, members: int
) -> list[bytes]:
    if ids is not None:
        return given_ids(ids, len(labels))
    if relation is Neighbours.REPLACE and members > 1:
        raise InvalidInput(
            f"members={members} under 'replace' needs ids: an exchanged record keeps its id, and with it its member; "
            "pass ids=, or use 'add_remove'"
        )
    return content_ids(check_features(features, dtype), labels)
