"""Training of a certified model: its parameter bounds per distance, and its certificates."""

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
class EnsemblePart:
    """The part of the records that a member of an ensemble was trained on.

    It is number `index` of the `count` parts into which a hash with `seed` splits the records.
    """

    seed: int
    count: int
    index: int


@dataclass(frozen=True, eq=False)
class Certified:
    """A trained model with a box of parameters per distance.

    NOT private: releasing answers requires a mechanism.
    """

    network: Network
    recipe: Recipe
    neighbours: Neighbours
    ladder: tuple[ParameterBounds, ...]  # distance 0 first
    dataset: str
    record_shape: tuple[int, ...]
    growth: tuple[Growth, ...]
    run_id: str  # random, drawn when training begins; identifies the model in the ledger
    preprocessing: Preprocessing | None = None
    public_records: int = 0  # number of public records in every batch
    part: EnsemblePart | None = None  # the part of an ensemble's records; None: all records
    signature: str | None = None  # of the file that it was loaded from, by the key of a ledger

    @property
    def distances(self) -> tuple[int, ...]:
        """The distances above 0 that were run."""
        return tuple(bounds.distance for bounds in self.ladder[1:])

    @property
    def classes(self) -> int:
        return self.recipe.loss_function.classes(self.network.outputs)

    @cached_property
    def model(self) -> nn.Module:
        """The nominal model, as a torch module in evaluation mode."""
        return self.network.module(nominal_parameters(self.ladder[0]))

    def bounds(self, k: int) -> ParameterBounds:
        """Return the box of distance k (0: the nominal model alone)."""
        for bounds in self.ladder:
            if bounds.distance == k:
                return bounds
        raise InvalidInput(f"k={k!r}: expected 0 or one of the distances that were run: {_abbreviated(self.distances)}")

    def predict(self, queries: Any) -> Tensor:
        """Return the plain labels, one int64 per query. NOT private."""
        return certify_queries(self.network, self.ladder[:1], self.network.front(self.features(queries)))[0]

    def certify(self, queries: Any) -> Certificate:
        """Return the label of each query and the distance up to which it is stable. NOT private.

        If all distances 1..K were run, the distance of the certificate is k itself; on a sparse
        grid it is the rank, that is, the number of grid points that are certified.
        """
        return self.certify_features(self.features(queries))

    def features(self, queries: Any) -> Tensor:
        """Return the queries as the model sees them, after preprocessing.

        Queries with equal features count as the same query.
        """
        if self.preprocessing is not None:
            queries = self.preprocessing.apply(queries, "queries")
        features = check_features(queries, self.network.dtype, "queries")
        if features.shape[1:] != self.record_shape:
            raise InvalidInput(f"queries have shape {tuple(features.shape)}: expected (number of queries, {shape_text(self.record_shape)})")
        return features

    def certify_features(self, features: Tensor) -> Certificate:
        """Return the certificate of queries that are given as `features` returns them."""
        labels, ranks = certify_queries(self.network, self.ladder, self.network.front(features))
        return Certificate(labels, ranks, self.neighbours, self.classes, reach=len(self.ladder) - 1)

    def certify_one_by_one(self, features: Tensor) -> Certificate:
        """Return the same certificate as `certify_features`, with work independent of the outcome.

        Code that serves answers uses this method.
        """
        found = [certify_one(self.network, self.ladder, query[None]) for query in self.network.front(features)]
        labels = torch.tensor([label for label, _ in found], dtype=torch.int64)
        ranks = torch.tensor([rank for _, rank in found], dtype=torch.int64)
        return Certificate(labels, ranks, self.neighbours, self.classes, reach=len(self.ladder) - 1)

    def diagnose(self) -> Diagnosis:
        """Return where the box of the middle distance grew fastest and what to change.

        NOT private.
        """
        start, end = self.network.parameters, nominal_parameters(self.ladder[0])
        travelled = {name: float((end[name] - start[name]).abs().double().mean()) for name in end}
        return diagnose_growth(self.growth, self.recipe, travelled, diagnosed_distance(self.distances))

    def save(self, path: str | PathLike[str], ledger: Ledger | None = None) -> None:
        """Save everything that serving needs.

        Leading frozen layers of types that holdfast does not write are left out and must be passed
        to `load` again.

        Args:
            path: Where to write the file, which is as private as the records.
            ledger: The ledger whose key signs the file, so that predictors detect changes.
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

    `neighbours` names the neighbour relation. `max_distance=K` runs all k = 1..K (default 100);
    `distances=[...]` runs a sparse grid instead, on which the *rank* is the certified distance.
    `ids` holds one unique integer or string per record; without it, the id of a record is a hash of
    its content. `public` is a pair (x, y) of public records that are mixed into every batch and are
    the same in all neighbouring data sets. `dataset` is the owner's name for the private data.
    `checkpoint` is a file from which to resume after an interruption; it is as private as the data.
    `preprocessing` holds public rules that compute the features of x, of the public x and of every
    query. `cache` is a file that stores the output of leading frozen layers per record, so that a
    slow encoder runs once per record; it is as private as the data. `trust_device` allows training
    on a device other than the CPU, where certificates hold only if the sums of the device's library
    for one record do not depend on the records beside it.
    """
    check_name("dataset", dataset)
    x, public = preprocess(preprocessing, x, public)
    if not len(as_features(x)):
        raise InvalidInput("x is empty: there is nothing to train on")
    options = Options(None if cache is None else Path(cache), trust_device, progress)
    job, shape = prepare(model, x, y, recipe, neighbours, max_distance, distances, ids, public, options)
    check_class_count(job, preprocessing)
    return run_job(job, shape, dataset, checkpoint, progress, preprocessing)


def run_job(
    job: Job,
    shape: tuple[int, ...],
    dataset: str,
    checkpoint: str | PathLike[str] | None,
    progress: bool,
    preprocessing: Preprocessing | None,
) -> Certified:
    """Run a prepared training job to its end and return the certified model."""
    with progress_bar(f"bounding {len(job.distances)} distances", _work_units(job), progress) as watch:
        path = None if checkpoint is None else Path(checkpoint)
        states = run(job, job.start(), watch) if path is None else run_with_checkpoint(job, path, watch)
        state = _last(states)
    ladder = tuple(reach.bounds for reach in state.boxes)
    warn_of_overflow(state)
    public = 0 if job.public is None else job.public.count(0)
    return Certified(job.network, job.recipe, job.neighbours, ladder, dataset, shape, state.growth, state.run_id, preprocessing, public)


def warn_of_overflow(state: State) -> None:
    """Warn the owner of numbers that outgrew the float range. NOT private.

    This is not an error, since a refusal would reveal something about a single record.
    """
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
            f"NOT private: {state.overflowed} records overflow, so their gradients count as "
            "anything within the clip; rescale the features by a public rule",
            HoldfastWarning,
            stacklevel=4,
        )


def _work_units(job: Job) -> int:
    """Return the number of pairs of a record and a distance that training goes through."""
    public = 0 if job.public is None else job.public.count(0) * job.recipe.batches
    records = sum(job.private.count(batch) for batch in range(job.recipe.batches)) + public
    return records * job.recipe.epochs * (len(job.distances) + 1)


def _last(states: Iterator[State]) -> State:
    return deque(states, maxlen=1).pop()


def _abbreviated(distances: tuple[int, ...]) -> str:
    return ", ".join(map(str, distances)) if len(distances) < 12 else f"{distances[0]}, {distances[1]}, ..., {distances[-1]}"
