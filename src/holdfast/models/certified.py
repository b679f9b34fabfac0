"""train and Certified: the model, its boxes for every distance, and the certificates that follow."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..certificates import Certificate, certify_one
from ..certificates import certify as certify_queries
from ..checks import check_name
from ..errors import HoldfastWarning, InvalidInput
from ..layers import Network
from ..ledger import Ledger
from ..preprocessing import Preprocessing
from ..progress import progress_bar
from ..records import as_features, check_features
from ..relations import Neighbours
from ..training.bounds import ParameterBounds, nominal_parameters
from ..training.checkpoint import run_with_checkpoint
from ..training.diagnosis import Diagnosis
from ..training.diagnosis import diagnose as diagnose_growth
from ..training.loop import Growth, Job, State, diagnosed_distance, run
from ..training.preparation import Options, check_class_count, prepare, preprocess, shape_text
from ..training.recipe import Recipe


@dataclass(frozen=True)
class Part:
    """Which of the records a member of an ensemble was trained on: number `index` of `count` parts, by a hash with `seed`."""

    seed: int
    count: int
    index: int


@dataclass(frozen=True, eq=False)
class Certified:
    """A trained model with a box of parameters for every distance. NOT private: releases need a mechanism."""

    network: Network
    recipe: Recipe
    neighbours: Neighbours
    ladder: tuple[ParameterBounds, ...]  # distance 0 first
    dataset: str
    record_shape: tuple[int, ...]
    growth: tuple[Growth, ...]
    run_id: str  # drawn at random when training began: what the ledger knows the model by
    preprocessing: Preprocessing | None = None
    public_records: int = 0  # mixed into every batch
    part: Part | None = None  # of an ensemble's split of the records; None: all of them
    signature: str | None = None  # of the file that it was loaded from, by the owner of a ledger

    @property
    def distances(self) -> tuple[int, ...]:
        """The distances beyond 0 that were run."""
        return tuple(bounds.distance for bounds in self.ladder[1:])

    @property
    def classes(self) -> int:
        return self.recipe.loss_function.classes(self.network.outputs)

    @cached_property
    def model(self) -> nn.Module:
        """The nominal model, as a torch module in evaluation mode."""
        return self.network.module(nominal_parameters(self.ladder[0]))

    def bounds(self, k: int) -> ParameterBounds:
        """The box of distance k (0: the nominal model alone)."""
        for bounds in self.ladder:
            if bounds.distance == k:
                return bounds
        raise InvalidInput(f"k={k!r}: expected 0 or one of the distances that were run: {_short(self.distances)}")

    def predict(self, queries: Any) -> Tensor:
        """The plain labels, one int64 a query. NOT private."""
        return certify_queries(self.network, self.ladder[:1], self.network.front(self.features(queries)))[0]

    def certify(self, queries: Any) -> Certificate:
        """For each query its label and how far it is stable. NOT private.

        With all distances 1..K run, the certificate's distance is k itself; with a sparse grid it is the rank, that
        is, how many grid points are certified.
        """
        return self.certify_features(self.features(queries))

    def features(self, queries: Any) -> Tensor:
        """The numbers that the model sees of queries, after the public rules: what is equal here is the same query."""
        if self.preprocessing is not None:
            queries = self.preprocessing.apply(queries, "queries")
        features = check_features(queries, self.network.dtype, "queries")
        if features.shape[1:] != self.record_shape:
            raise InvalidInput(f"queries have shape {tuple(features.shape)}: expected (number of queries, {shape_text(self.record_shape)})")
        return features

    def certify_features(self, features: Tensor) -> Certificate:
        """`certify`, of what `features` returned."""
        labels, ranks = certify_queries(self.network, self.ladder, self.network.front(features))
        return Certificate(labels, ranks, self.neighbours, self.classes, reach=len(self.ladder) - 1)

    def certify_one_by_one(self, features: Tensor) -> Certificate:
        """The same certificate, with work that does not depend on the outcome: what serves answers uses this."""
        found = [certify_one(self.network, self.ladder, query[None]) for query in self.network.front(features)]
        labels = torch.tensor([label for label, _ in found], dtype=torch.int64)
        ranks = torch.tensor([rank for _, rank in found], dtype=torch.int64)
        return Certificate(labels, ranks, self.neighbours, self.classes, reach=len(self.ladder) - 1)

    def diagnose(self) -> Diagnosis:
        """Where the box of the middle distance grew fastest, and what to change. NOT private."""
        start, end = self.network.parameters, nominal_parameters(self.ladder[0])
        travelled = {name: float((end[name] - start[name]).abs().double().mean()) for name in end}
        return diagnose_growth(self.growth, self.recipe, travelled, diagnosed_distance(self.distances))

    def save(self, path: str | PathLike[str], ledger: Ledger | None = None) -> None:
        """Save everything that serving needs, except a prefix of foreign layers, which `load` must be given again.

        Args:
            path: Where to write the file. It is as private as the records.
            ledger: Sign the file with the key of this ledger, so that a predictor can tell a changed file.
        """
        from .saved import save

        save(self, Path(path), ledger)


def train(
    model: nn.Module,
    x: Any,
    y: Any,
    recipe: Recipe,
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
) -> Certified:
    """Train a copy of `model` on the records (x, y) and bound it for every distance.

    Give `max_distance=K` for all k = 1..K (default 100), or a sparse grid `distances=[...]`, where the *rank* is then
    the certified distance. `neighbours` names the relation. `ids`: one unique whole number or string a record;
    without, a record's id is a hash of its content. `public`: records (x, y) mixed into every batch as fixed, never
    exchanged. `dataset`: the owner's name for the private data. `checkpoint`: a file to resume from after an
    interruption; it is as private as the data. `preprocessing`: public rules that make features of x, of the public x
    and of every query. `cache`: a file that keeps what frozen layers in front make of each record, so that a slow
    encoder sees it once; it is as private as the data. `trust_device`: train on a device other than the CPU, where
    certificates are only as good as the order in which its library adds.
    """
    check_name("dataset", dataset)
    x, public = preprocess(preprocessing, x, public)
    if not len(as_features(x)):
        raise InvalidInput("x is empty: there is nothing to train on")
    options = Options(None if cache is None else Path(cache), trust_device, progress)
    job, shape = prepare(model, x, y, recipe, neighbours, max_distance, distances, ids, public, options)
    check_class_count(job, preprocessing)
    return finish(job, shape, dataset, checkpoint, progress, preprocessing)


def finish(
    job: Job,
    shape: tuple[int, ...],
    dataset: str,
    checkpoint: str | PathLike[str] | None,
    progress: bool,
    preprocessing: Preprocessing | None,
) -> Certified:
    """Run a job to its end."""
    with progress_bar(f"bounding {len(job.distances)} distances", _work(job), progress) as watch:
        path = None if checkpoint is None else Path(checkpoint)
        states = run(job, job.start(), watch) if path is None else run_with_checkpoint(job, path, watch)
        state = _last(states)
    ladder = tuple(reach.bounds for reach in state.boxes)
    warn_of_overflow(state)
    public = 0 if job.public is None else job.public.count(0)
    return Certified(job.network, job.recipe, job.neighbours, ladder, dataset, shape, state.growth, state.run_id, preprocessing, public)


def warn_of_overflow(state: State) -> None:
    """Tell the owner of numbers that outgrew the floats. NOT private, and no error: a refusal would tell about one record."""
    at_float_limit = [reach.bounds.distance for reach in state.boxes if reach.bounds.at_float_limit]
    if at_float_limit:
        warnings.warn(
            f"NOT private: the bounds outgrew the float range from distance {at_float_limit[0]} on; no query is certified there. "
            "Lower the learning rate or the number of steps, or rescale the features",
            HoldfastWarning,
            stacklevel=4,
        )
    if state.overflowed:
        warnings.warn(
            f"NOT private: {state.overflowed} records overflow and count as anything within the clip; rescale the features by a public rule",
            HoldfastWarning,
            stacklevel=4,
        )


def _work(job: Job) -> int:
    """Pairs of a record and a distance."""
    public = 0 if job.public is None else job.public.count(0) * job.recipe.batches
    records = sum(job.private.count(batch) for batch in range(job.recipe.batches)) + public
    return records * job.recipe.epochs * (len(job.distances) + 1)


def _last(states: Iterator[State]) -> State:
    return deque(states, maxlen=1).pop()


def _short(distances: tuple[int, ...]) -> str:
    return ", ".join(map(str, distances)) if len(distances) < 12 else f"{distances[0]}, {distances[1]}, ..., {distances[-1]}"
