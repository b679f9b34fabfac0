"""train and Certified: the model, its boxes for every distance, and the certificates that follow."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .certificates import Certificate, certify_one
from .certificates import certify as certify_queries
from .checks import printable_name, whole
from .errors import HoldfastWarning, InvalidInput
from .kernels import UNITS
from .layers import Network
from .neighbours import Neighbours
from .progress import progress_bar
from .public import Preprocessing
from .records import Records, as_features, assign, check_features, check_labels, content_ids, given_ids
from .training.bounds import ParameterBounds, nominal
from .training.checkpoint import run_with_checkpoint
from .training.diagnosis import Diagnosis
from .training.diagnosis import diagnose as diagnose_growth
from .training.features import front_features
from .training.loop import Growth, Job, State, middle, run
from .training.recipe import Recipe


@dataclass(frozen=True)
class Options:
    """What does not change the outcome of training."""

    cache: Path | None = None
    trust_device: bool = False
    progress: bool = False


DEFAULTS = Options()


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
    preprocessing: Preprocessing | None = None
    public_records: int = 0  # mixed into every batch
    part: Part | None = None  # of an ensemble's split of the records; None: all of them

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
        return self.network.module(nominal(self.ladder[0]))

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
            raise InvalidInput(f"queries have shape {tuple(features.shape)}: expected (number of queries, {_sides(self.record_shape)})")
        return features + 0.0  # -0 is 0

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
        start, end = self.network.parameters, nominal(self.ladder[0])
        travelled = {name: float((end[name] - start[name]).abs().double().mean()) for name in end}
        return diagnose_growth(self.growth, self.recipe, travelled, middle(self.distances))

    def save(self, path: str | PathLike[str]) -> None:
        """Save everything that serving needs, except a prefix of foreign layers, which `load` must be given again."""
        from .saved import save

        save(self, Path(path))


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
    printable_name("dataset", dataset)
    x, public = preprocess(preprocessing, x, public)
    if not len(as_features(x)):
        raise InvalidInput("x is empty: there is nothing to train on")
    options = Options(None if cache is None else Path(cache), trust_device, progress)
    job, shape = prepare(model, x, y, recipe, neighbours, max_distance, distances, ids, public, options)
    refuse_other_classes(job, preprocessing)
    return finish(job, shape, dataset, checkpoint, progress, preprocessing)


def preprocess(preprocessing: Preprocessing | None, x: Any, public: tuple[Any, Any] | None) -> tuple[Any, tuple[Any, Any] | None]:
    """Private and public records after the public rules; refuses rules that were fitted on the private ones."""
    if preprocessing is None:
        return x, public
    if not isinstance(preprocessing, Preprocessing):
        raise InvalidInput(f"preprocessing is a {type(preprocessing).__name__}: expected an hf.Preprocessing")
    if isinstance(public, tuple | list) and len(public) == 2:  # anything else is refused by prepare
        public = (preprocessing.apply(public[0], "public x"), public[1])
    return preprocessing.apply_private(x), public


def refuse_other_classes(job: Job, preprocessing: Preprocessing | None) -> None:
    """Raise where the model has another number of classes than the schema names: both are public."""
    classes = job.recipe.loss_function.classes(job.network.outputs)
    if preprocessing is not None and preprocessing.classes and len(preprocessing.classes) != classes:
        raise InvalidInput(
            f"the model has {job.network.outputs} outputs, which with {job.recipe.loss!r} is {classes} classes; "
            f"the schema names {len(preprocessing.classes)}: {list(preprocessing.classes)}"
        )


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
    ladder = tuple(reach.bounds for reach in state.reaches)
    warn_of_overflow(state)
    public = 0 if job.public is None else job.public.count(0)
    return Certified(job.network, job.recipe, job.neighbours, ladder, dataset, shape, state.growth, preprocessing, public)


def prepare(
    model: nn.Module,
    x: Any,
    y: Any,
    recipe: Recipe,
    neighbours: Neighbours | str = "add_remove",
    max_distance: int | None = None,
    distances: Iterable[int] | None = None,
    ids: Iterable[Any] | None = None,
    public: tuple[Any, Any] | None = None,
    options: Options = DEFAULTS,
) -> tuple[Job, tuple[int, ...]]:
    """Check everything that `train` was given, before any work starts; the job and the shape of one record."""
    relation = Neighbours.of(neighbours)
    if not isinstance(recipe, Recipe):
        raise InvalidInput(f"recipe is a {type(recipe).__name__}: expected an hf.Recipe")
    grid = _grid(max_distance, distances)
    x = as_features(x)
    if 0 in x.shape[1:]:
        raise InvalidInput(f"x has shape {tuple(x.shape)}: its records are empty, there is nothing to train on")
    shape = tuple(x.shape[1:])
    network = Network.of(model, shape)
    _refuse_device(network, options)
    _refuse_coefficients(recipe, network.dtype)
    if UNITS / recipe.clip > torch.finfo(network.dtype).max / UNITS:
        raise InvalidInput(f"clip={recipe.clip!r}: too small for a model in {network.dtype}; try clip=0.05")
    classes = recipe.loss_function.classes(network.outputs)
    features = check_features(x, network.dtype)
    labels = check_labels(y, len(features), classes)
    extra = None if public is None else _public(public, network, classes, shape, options)
    recipe = complete(recipe, relation, len(labels), 0 if extra is None else len(extra.labels))
    batch = _batches(features, labels, ids, recipe, relation)
    front = front_features(network.front, features, options.cache, options.progress)
    return Job(network, recipe, relation, grid, Records.of(front, labels, batch, recipe.batches), extra), shape


def _grid(max_distance: int | None, distances: Iterable[int] | None) -> tuple[int, ...]:
    if distances is None:
        return tuple(range(1, whole("max_distance", 100 if max_distance is None else max_distance, 1) + 1))
    if max_distance is not None:
        raise InvalidInput("give either max_distance or distances, not both")
    if not isinstance(distances, Iterable):
        raise InvalidInput(f"distances={distances!r}: expected several growing whole numbers")
    grid = tuple(whole("distances", k, 1) for k in distances)
    if not grid or list(grid) != sorted(set(grid)):
        raise InvalidInput(f"distances={grid!r}: expected growing whole numbers, each at least 1")
    return grid


def _public(public: tuple[Any, Any], network: Network, classes: int, shape: tuple[int, ...], options: Options) -> Records:
    if not isinstance(public, tuple | list) or len(public) != 2:
        raise InvalidInput("public: expected a pair (x, y) of public records")
    features = check_features(public[0], network.dtype, "public x")
    if features.shape[1:] != shape:
        raise InvalidInput(f"public x has shape {tuple(features.shape)}: expected (records, {_sides(shape)}), like x")
    labels = check_labels(public[1], len(features), classes, "public y")
    return Records.of(front_features(network.front, features, options.cache, options.progress), labels)


def complete(recipe: Recipe, relation: Neighbours, records: int, public: int) -> Recipe:
    """The recipe with its normaliser filled in. Only under `replace` is the number of records public."""
    if recipe.batch_size is not None:
        return recipe
    count = -(-records // recipe.batches) + public
    if relation is not Neighbours.REPLACE:
        raise InvalidInput(
            f"batch_size=None: under {relation.value!r} the number of records is private, so the normaliser must be a public number; give a "
            "round one that you would choose without looking at the table, for example batch_size=1000 where about a thousand are expected"
        )
    return replace(recipe, batch_size=count)


def _batches(features: Tensor, labels: Tensor, ids: Iterable[Any] | None, recipe: Recipe, relation: Neighbours) -> Tensor | None:
    codes = None if ids is None else given_ids(ids, len(labels))
    if recipe.batches == 1:
        return None
    if codes is None and relation is Neighbours.REPLACE:
        raise InvalidInput(
            f"batches={recipe.batches} under 'replace' needs ids: an exchanged record keeps its id, and with it its batch; "
            "pass ids=, use one batch, or use 'add_remove'"
        )
    codes = content_ids(features, labels) if codes is None else codes
    return assign(codes, recipe.batches, recipe.seed, b"batch")


def _refuse_device(network: Network, options: Options) -> None:
    if network.device.type != "cpu" and not options.trust_device:
        raise InvalidInput(
            f"the model is on {network.device}: there, sums are a library's, and a certificate is only as good as its word that a record's "
            "result does not depend on the records beside it; call model.cpu(), or pass trust_device=True"
        )


def _refuse_coefficients(recipe: Recipe, dtype: torch.dtype) -> None:
    """Raise if a number of the recipe, or one that the optimiser makes of it, is infinite in the model's type."""
    factors = {name: getattr(recipe, name) for name in ("learning_rate", "min_learning_rate", "momentum", "weight_decay")}
    factors["momentum"] *= 1.0 + recipe.momentum if recipe.nesterov else 1.0
    for name, factor in factors.items():
        if factor > torch.finfo(dtype).max:
            raise InvalidInput(f"{name}={getattr(recipe, name)!r}: too large for a model in {dtype}; use a smaller one")


def warn_of_overflow(state: State) -> None:
    """Tell the owner of numbers that outgrew the floats. NOT private, and no error: a refusal would tell about one record."""
    outgrown = [reach.bounds.distance for reach in state.reaches if reach.bounds.outgrown]
    if outgrown:
        warnings.warn(
            f"NOT private: the bounds outgrew the float range from distance {outgrown[0]} on; no query is certified there. "
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


def _sides(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
