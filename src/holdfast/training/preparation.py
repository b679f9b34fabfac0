"""Preparation: check everything that training was given, before any work starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..arrays import as_features, check_features, check_labels, shape_text
from ..checks import check_integer
from ..errors import InvalidInput
from ..kernels import UNITS
from ..layers import Network
from ..preprocessing import Preprocessing
from ..records import Persons, Records, assign_parts, content_ids, given_ids, relation_for
from ..relations import Neighbours
from .features import front_features
from .job import Job
from .recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The optional arguments of `hf.train`, as they were given."""

    neighbours: Neighbours | str = "add_remove"
    max_distance: int | None = None
    distances: Iterable[int] | None = None
    ids: Iterable[Any] | None = None
    persons: Iterable[Any] | None = None
    max_records_per_person: int | None = None
    public: tuple[Any, Any] | None = None
    preprocessing: Preprocessing | None = None
    cache: str | PathLike[str] | None = None
    trust_device: bool = False
    progress: bool = False

    @property
    def relation(self) -> Neighbours:
        """The relation, checked; per person if persons are given."""
        relation = relation_for(
            self.neighbours, self.ids, self.persons, self.max_records_per_person
        )
        if relation is Neighbours.REPLACE_PERSON:
            raise InvalidInput(
                "neighbours='replace' with persons is not available for networks; use "
                "'add_remove', under which an exchange counts as two moves, or a linear head"
            )
        return relation


_LARGEST_DISTANCE = 10**9


def preprocess(x: Any, settings: Settings, private: bool = True) -> tuple[Any, Settings]:
    """Apply the public rules to the private records, unless told otherwise, and the public ones.

    Raises:
        InvalidInput: If the rules were fitted on the private records.
    """
    preprocessing, public = settings.preprocessing, settings.public
    if preprocessing is None:
        return x, settings
    if not isinstance(preprocessing, Preprocessing):
        raise InvalidInput(
            f"preprocessing is a {type(preprocessing).__name__}: expected an hf.Preprocessing"
        )
    if isinstance(public, tuple | list) and len(public) == 2:  # anything else is refused by prepare
        public = (preprocessing.apply(public[0], "public x"), public[1])
    applied = preprocessing.apply_private(x) if private else None
    return applied, replace(settings, public=public)


def check_class_count(job: Job, preprocessing: Preprocessing | None) -> None:
    """Raise if model and schema differ in the number of classes; both numbers are public."""
    classes = job.recipe.loss_function.classes(job.network.outputs)
    if (
        preprocessing is not None
        and preprocessing.classes
        and len(preprocessing.classes) != classes
    ):
        raise InvalidInput(
            f"the model has {job.network.outputs} outputs, which with {job.recipe.loss!r} "
            f"is {classes} classes; "
            f"the schema names {len(preprocessing.classes)}: {list(preprocessing.classes)}"
        )


def prepare(
    model: nn.Module, x: Any, y: Any, recipe: Recipe, settings: Settings
) -> tuple[Job, tuple[int, ...]]:
    """Check everything that `train` was given; return the job and the shape of one record."""
    relation = settings.relation
    refuse_other_recipes(recipe)
    grid = distance_grid(settings.max_distance, settings.distances)
    x = as_features(x)
    if 0 in x.shape[1:]:
        raise InvalidInput(
            f"x has shape {tuple(x.shape)}: its records are empty, there is nothing to train on"
        )
    shape = tuple(x.shape[1:])
    network = checked_network(model, shape, recipe, settings)
    classes = recipe.loss_function.classes(network.outputs)
    features = check_features(x, network.dtype)
    labels = check_labels(y, len(features), classes)
    extra = public_records(network, classes, shape, settings)
    recipe = with_batch_size(
        recipe, relation, len(labels), 0 if extra is None else len(extra.labels)
    )
    if settings.persons is None:
        limits, batch = None, _batches(features, labels, settings.ids, recipe, relation)
    else:
        owners = _owners(settings, features, labels, recipe.seed)
        features, labels = features[owners.rows], labels[owners.rows]
        limits, batch = UNITS // owners.counts, None
        if recipe.batches > 1:
            batch = assign_parts(owners.codes, recipe.batches, recipe.seed, b"batch")
    front = _features(network, features, settings)
    private = Records.of(front, labels, batch, recipe.batches, limits)
    job = Job(network, recipe, relation, grid, private, extra, settings.max_records_per_person)
    return job, shape


def checked_network(
    model: nn.Module, shape: tuple[int, ...], recipe: Recipe, settings: Settings
) -> Network:
    """Return the network for records of a shape; raise if it cannot be trained by the recipe."""
    network = Network.of(model, shape)
    _refuse_device(network, settings)
    _refuse_coefficients(recipe, network.dtype)
    if UNITS / recipe.clip > torch.finfo(network.dtype).max / UNITS:
        raise InvalidInput(
            f"clip={recipe.clip!r}: too small for a model in {network.dtype}; try clip=0.05"
        )
    return network


def _owners(settings: Settings, features: Tensor, labels: Tensor, seed: int) -> Persons:
    """Return the owners of the records; raise if one has more records than a clip has units."""
    owners = Persons.of(settings.persons, settings.max_records_per_person, features, labels, seed)
    refuse_too_many_records(owners)
    return owners


def refuse_too_many_records(owners: Persons) -> None:
    """Raise InvalidInput if a person has more records than a clip has units."""
    most = int(owners.counts.max()) if len(owners.counts) else 0
    if most > UNITS:
        raise InvalidInput(
            f"a person has {most:,} records: expected at most {UNITS:,}, the number of units in "
            "which a gradient is clipped; give a public max_records_per_person, for example 100"
        )


def refuse_unlike_members(networks: Sequence[Network]) -> None:
    """Raise InvalidInput if the members of an ensemble cannot vote with each other."""
    if len({(network.outputs, network.dtype) for network in networks}) > 1:
        raise InvalidInput(
            "make_model: the members have different numbers of outputs or types; "
            "expected the same architecture"
        )


def refuse_other_recipes(recipe: Any) -> None:
    """Raise InvalidInput unless the recipe is one for networks."""
    if not isinstance(recipe, Recipe):
        raise InvalidInput(f"recipe is a {type(recipe).__name__}: expected an hf.Recipe")


def distance_grid(max_distance: int | None, distances: Iterable[int] | None) -> tuple[int, ...]:
    """Return the distances to run; raise InvalidInput if they are not growing whole numbers."""
    if distances is None:
        return tuple(
            range(1, _distance("max_distance", 100 if max_distance is None else max_distance) + 1)
        )
    if max_distance is not None:
        raise InvalidInput("give either max_distance or distances, not both")
    if not isinstance(distances, Iterable):
        raise InvalidInput(f"distances={distances!r}: expected several growing whole numbers")
    grid = tuple(_distance("distances", k) for k in distances)
    if not grid or list(grid) != sorted(set(grid)):
        raise InvalidInput(f"distances={grid!r}: expected growing whole numbers, each at least 1")
    return grid


def _distance(name: str, value: int) -> int:
    """Return `value` as a distance, or raise InvalidInput.

    The upper limit keeps sums of whole units exact, whatever the records are.
    """
    distance = check_integer(name, value, 1)
    if distance > _LARGEST_DISTANCE:
        raise InvalidInput(f"{name}={distance}: expected at most {_LARGEST_DISTANCE:,}")
    return distance


def _features(network: Network, records: Tensor, settings: Settings) -> Tensor:
    cache = None if settings.cache is None else Path(settings.cache)
    return front_features(network.front, records, cache, settings.progress)


def public_records(
    network: Network, classes: int, shape: tuple[int, ...], settings: Settings
) -> Records | None:
    """Return the public records, checked; None if there are none."""
    public = settings.public
    if public is None:
        return None
    if not isinstance(public, tuple | list) or len(public) != 2:
        raise InvalidInput("public: expected a pair (x, y) of public records")
    features = check_features(public[0], network.dtype, "public x")
    if features.shape[1:] != shape:
        raise InvalidInput(
            f"public x has shape {tuple(features.shape)}: "
            f"expected (records, {shape_text(shape)}), like x"
        )
    labels = check_labels(public[1], len(features), classes, "public y")
    return Records.of(_features(network, features, settings), labels)


def with_batch_size(recipe: Recipe, relation: Neighbours, records: int, public: int) -> Recipe:
    """Return the recipe with the normaliser `batch_size` filled in.

    It may be None only under `replace`, where the number of records is public.
    """
    if recipe.batch_size is not None:
        return recipe
    count = -(-records // recipe.batches) + public
    if not relation.exchanges:
        unit = relation.unit
        raise InvalidInput(
            f"batch_size=None: under {relation.value!r} the number of {unit}s is private, "
            "so the normaliser must be a public number; give a round one that you would choose "
            "without looking at the table, "
            f"for example batch_size=1000 if you expect about a thousand {unit}s per batch"
        )
    return replace(recipe, batch_size=count)


def _batches(
    features: Tensor,
    labels: Tensor,
    ids: Iterable[Any] | None,
    recipe: Recipe,
    relation: Neighbours,
) -> Tensor | None:
    codes = None if ids is None else given_ids(ids, len(labels))
    if recipe.batches == 1:
        return None
    if codes is None and relation.exchanges:
        raise InvalidInput(
            f"batches={recipe.batches} under 'replace' needs ids: an exchanged record keeps "
            "its id, and with it its batch; pass ids=, use one batch, or use 'add_remove'"
        )
    codes = content_ids(features, labels) if codes is None else codes
    return assign_parts(codes, recipe.batches, recipe.seed, b"batch")


def _refuse_device(network: Network, settings: Settings) -> None:
    if network.device.type != "cpu" and not settings.trust_device:
        raise InvalidInput(
            f"the model is on {network.device}: sums on this device are computed by its library, "
            "and a certificate holds only if there a record's result does not depend on the other "
            "records in its batch; call model.cpu(), or pass trust_device=True"
        )


def _refuse_coefficients(recipe: Recipe, dtype: torch.dtype) -> None:
    """Raise if a number of the recipe, or one derived from it, is infinite in the model's dtype."""
    factors = {
        name: getattr(recipe, name)
        for name in ("learning_rate", "min_learning_rate", "momentum", "weight_decay")
    }
    factors["momentum"] *= 1.0 + recipe.momentum if recipe.nesterov else 1.0
    for name, factor in factors.items():
        if factor > torch.finfo(dtype).max:
            raise InvalidInput(
                f"{name}={getattr(recipe, name)!r}: too large for a model in {dtype}; "
                "use a smaller one"
            )
