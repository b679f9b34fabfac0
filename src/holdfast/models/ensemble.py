"""Ensembles of certified models that are trained on disjoint parts of the records and vote."""

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

from ..certificates import Certificate, certify_vote, count_votes, winners
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
from .certified import Certified, EnsemblePart, run_job


@dataclass(frozen=True, eq=False)
class CertifiedEnsemble:
    """An ensemble of certified members that vote; ties go to the larger label.

    NOT private: releasing answers requires a mechanism.
    """

    members: tuple[Certified, ...]
    preprocessing: Preprocessing | None = None
    signature: str | None = None  # of the file that it was loaded from, by the key of a ledger

    def __post_init__(self) -> None:
        kinds = {(member.dataset, member.neighbours, member.classes, member.record_shape) for member in self.members}
        if len(kinds) != 1 or len({id(member) for member in self.members}) != len(self.members):
            raise InvalidInput("members: expected different models of one data set, relation and shape, as train_ensemble makes them")
        seeds = {member.part.seed for member in self.members if member.part is not None}
        split = {EnsemblePart(seed, len(self.members), index) for seed in seeds for index in range(len(self.members))}
        if len(seeds) != 1 or {member.part for member in self.members} != split:
            raise InvalidInput(
                f"members: {len(self.members)} models whose records are "
                "not the parts of one split; "
                "the distance of a vote holds only if no two members share a record; "
                "train them with train_ensemble"
            )

    @property
    def classes(self) -> int:
        return self.members[0].classes

    @property
    def neighbours(self) -> Neighbours:
        return self.members[0].neighbours

    @property
    def distances(self) -> tuple[int, ...]:
        """The distances above 0 that each member was run at."""
        return self.members[0].distances

    @property
    def recipe(self) -> Recipe:
        """The recipe of every member."""
        return self.members[0].recipe

    @property
    def dataset(self) -> str:
        return self.members[0].dataset

    @property
    def run_id(self) -> str:
        """The identifier of the training run: a hash of the random identifiers of the members."""
        return hashlib.sha256("".join(member.run_id for member in self.members).encode()).hexdigest()[:32]

    def predict(self, queries: Any) -> Tensor:
        """Return the plain labels, one int64 per query. NOT private."""
        return winners(self.votes(queries))

    def votes(self, queries: Any) -> Tensor:
        """Return the number of votes for each class, as (queries, classes). NOT private."""
        features = self.features(queries)
        return count_votes(torch.stack([member.predict(features) for member in self.members], 1), self.classes)

    def certify(self, queries: Any) -> Certificate:
        """Return each query's label, how far the vote is stable, and the votes. NOT private."""
        return self.certify_features(self.features(queries))

    def certify_members(self, queries: Any) -> list[Certificate]:
        """Return the certificate of each member. NOT private."""
        features = self.features(queries)
        return [member.certify_features(features) for member in self.members]

    def features(self, queries: Any) -> Tensor:
        """Return the queries as the members see them, after preprocessing.

        Queries with equal features count as the same query.
        """
        return self.members[0].features(queries if self.preprocessing is None else self.preprocessing.apply(queries, "queries"))

    def certify_features(self, features: Tensor) -> Certificate:
        """Return the certificate of queries that are given as `features` returns them."""
        return certify_vote([member.certify_features(features) for member in self.members])

    def certify_one_by_one(self, features: Tensor) -> Certificate:
        """Return the same certificate as `certify_features`, with work independent of the outcome.

        Code that serves answers uses this method.
        """
        return certify_vote([member.certify_one_by_one(features) for member in self.members])

    def save(self, path: str | PathLike[str], ledger: Ledger | None = None) -> None:
        """Save everything that serving needs, signed with the key of `ledger` if one is given.

        See `Certified.save`.
        """
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
    """Train `members` models on disjoint parts of the records and bound each for every distance.

    `make_model(seed)` makes member number `seed` (from 0). A keyed hash of a record's id determines
    its member, independently of its batch. `recipe.batch_size` is the normaliser of each *member*:
    about records / members / batches. Under 'replace', `ids` are required. `checkpoint` and `cache`
    are the beginnings of file names, with one file per member. The other arguments are those of
    `train`.
    """
    check_name("dataset", dataset)
    x, public = preprocess(preprocessing, x, public)
    options = Options(None if cache is None else Path(cache), trust_device, progress)
    jobs = prepare_members(make_model, x, y, recipe, members, neighbours, max_distance, distances, ids, public, options)
    check_class_count(jobs[0][0], preprocessing)
    paths = [None if checkpoint is None else f"{checkpoint}.{member}" for member in range(len(jobs))]
    trained = []
    for member, ((job, shape), path) in enumerate(zip(jobs, paths, strict=True)):
        part = EnsemblePart(recipe.seed, len(jobs), member)
        trained.append(replace(run_job(job, shape, dataset, path, progress, None), part=part))
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
    """Split the records and check the job of every member, before the first one is trained."""
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
    """Return the number of public records.

    Whether they are valid is checked when each member is prepared.
    """
    return len(public[1]) if isinstance(public, tuple | list) and len(public) == 2 else 0


def _codes(
    features: Tensor, labels: Tensor, ids: Iterable[Any] | None, relation: Neighbours, dtype: torch.dtype, members: int
) -> list[bytes]:
    if ids is not None:
        return given_ids(ids, len(labels))
    if relation is Neighbours.REPLACE and members > 1:
        raise InvalidInput(
            f"members={members} under 'replace' needs ids: an exchanged record keeps its id, "
            "and with it its member; pass ids=, or use 'add_remove'"
        )
    return content_ids(check_features(features, dtype), labels)
