"""Check everything that training was given, before any work starts.

The records are read once, checked and preprocessed in parts, and kept on disk as the network sees
them. Each record passes the same checks, hashes and rules as in memory, alone; and sums over
records are exact, so the result is the same to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..arrays import as_features, check_features, check_labels, shape_text
from ..checks import check_integer
from ..errors import InvalidInput
from ..kernels import UNITS
from ..layers import Network
from ..preprocessing import Preprocessing
from ..records import (
    Chunk,
    ParquetRecords,
    Persons,
    Records,
    Spool,
    assign_parts,
    content_ids,
    given_ids,
    owner_codes,
    relation_for,
)
from ..records.prepare import (
    Part,
    in_partitions,
    label_numbers,
    numpy_type,
    read_chunks,
    record_width,
)
from ..records.streamed import StreamedRecords
from ..relations import Neighbours
from ..workers import progress_bar
from .checkpoint import front_features
from .loop import Job
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


def prepare_members(
    make_model: Callable[[int], nn.Module],
    x: Any,
    y: Any,
    recipe: Recipe,
    members: int,
    settings: Settings,
) -> list[tuple[Job, tuple[int, ...]]]:
    """Split the records and check the job of every member, before the first one is trained."""
    count, relation = check_integer("members", members, 1), settings.relation
    features = as_features(x)
    if not len(features):
        raise InvalidInput("x is empty: there is nothing to train on")
    refuse_other_recipes(recipe)
    recipe = with_batch_size(
        recipe, relation, -(-len(features) // count), _public_count(settings.public)
    )
    if isinstance(settings.distances, Iterable):
        settings = replace(settings, distances=tuple(settings.distances))
    settings = replace(settings, ids=_as_list(settings.ids), persons=_as_list(settings.persons))
    networks = [Network.of(make_model(seed), tuple(features.shape[1:])) for seed in range(count)]
    labels = check_labels(y, len(features), recipe.loss_function.classes(networks[0].outputs))
    codes = _codes(features, labels, settings, networks[0].dtype, count)
    part = assign_parts(codes, count, recipe.seed, b"member")
    jobs = []
    for member, network in enumerate(networks):
        chosen = part == member
        own = replace(
            settings,
            ids=_chosen(settings.ids, chosen),
            persons=_chosen(settings.persons, chosen),
            cache=None if settings.cache is None else f"{settings.cache}.{member}",
        )
        jobs.append(prepare(network.model, features[chosen], labels[chosen], recipe, own))
    refuse_unlike_members([job.network for job, _ in jobs])
    return jobs


def _as_list(ids: Iterable[Any] | None) -> Any:
    return list(ids) if isinstance(ids, Iterable) and not isinstance(ids, str | bytes) else ids


def _chosen(ids: Any, chosen: Tensor) -> list[Any] | None:
    return None if ids is None else list(compress(ids, chosen.tolist()))


def _public_count(public: tuple[Any, Any] | None) -> int:
    """Return the number of public records.

    Whether they are valid is checked when each member is prepared.
    """
    return len(public[1]) if isinstance(public, tuple | list) and len(public) == 2 else 0


def _codes(
    features: Tensor,
    labels: Tensor,
    settings: Settings,
    dtype: torch.dtype,
    members: int,
) -> list[bytes]:
    """Return the ids by which records are assigned to members: their own, or their owners'."""
    if settings.persons is not None:
        return owner_codes(settings.persons, len(labels))
    if settings.ids is not None:
        return given_ids(settings.ids, len(labels))
    if settings.relation.exchanges and members > 1:
        raise InvalidInput(
            f"members={members} under 'replace' needs ids: an exchanged record keeps its id, "
            "and with it its member; pass ids=, or use 'add_remove'"
        )
    return content_ids(check_features(features, dtype), labels)


def prepare_streamed(
    models: Sequence[nn.Module], source: ParquetRecords, recipe: Recipe, settings: Settings
) -> list[tuple[Job, tuple[int, ...]]]:
    """Read and check all records; return, for each member, the job and the shape of one record."""
    relation, rules, members = settings.relation, settings.preprocessing, len(models)
    refuse_other_recipes(recipe)
    grid = distance_grid(settings.max_distance, settings.distances)
    if settings.cache is not None:
        raise InvalidInput("cache: not used for records in files, whose features are kept anyway")
    if not source.count:
        raise InvalidInput(f"{source.path}: holds no records, there is nothing to train on")
    shape = (record_width(source, rules),)
    networks = [checked_network(model, shape, recipe, settings) for model in models]
    refuse_unlike_members(networks)
    classes = recipe.loss_function.classes(networks[0].outputs)
    extras = [public_records(network, classes, shape, settings) for network in networks]
    public = 0 if extras[0] is None else len(extras[0].labels)
    recipe = with_batch_size(recipe, relation, -(-source.count // members), public)
    _refuse_missing_ids(source, recipe, relation, members)
    writings = [_Writing(network, recipe, settings) for network in networks]
    with progress_bar("reading", source.count, settings.progress) as watch:
        for features, labels, codes in _parts(source, rules, networks[0], classes, settings, watch):
            if members == 1:
                writings[0].add(features, labels, codes)
                continue
            codes = content_ids(features, labels) if codes is None else codes
            part = assign_parts(codes, members, recipe.seed, b"member")
            for member, writing in enumerate(writings):
                chosen = part == member
                own = list(compress(codes, chosen.tolist()))
                writing.add(features[chosen], labels[chosen], own)
    most = settings.max_records_per_person
    return [
        (Job(network, recipe, relation, grid, writing.records(), extra, most), shape)
        for network, extra, writing in zip(networks, extras, writings, strict=True)
    ]


def _refuse_missing_ids(
    source: ParquetRecords, recipe: Recipe, relation: Neighbours, members: int
) -> None:
    """Raise if an exchanged record would not keep its batch and member."""
    parts = {"batches": recipe.batches, "members": members}
    name = next((name for name, count in parts.items() if count > 1), None)
    if name is not None and relation.exchanges and source.id is None:
        raise InvalidInput(
            f"{name}={parts[name]} under 'replace' needs ids: an exchanged record keeps its id, "
            "and with it its batch and member; name the column id=, or use 'add_remove'"
        )


@dataclass
class _Writing:
    """Records on their way to disk, as the network sees them."""

    network: Network
    recipe: Recipe
    settings: Settings
    spool: Spool = field(init=False)
    shape: tuple[int, ...] = field(init=False)  # of a record's features after the front
    labels: list[Any] = field(default_factory=list)
    batch: list[Any] = field(default_factory=list)
    limits: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shape = self.network.front.shapes[-1]
        self.spool = Spool(math.prod(self.shape), numpy_type(self.network.dtype))

    def add(self, features: Tensor, labels: Tensor, codes: list[bytes] | None) -> None:
        """Add records, with their ids, or with their owners if privacy is per person."""
        if self.settings.persons is not None:
            assert codes is not None
            most, seed = self.settings.max_records_per_person, self.recipe.seed
            owners = Persons.of_codes(codes, most, features, labels, seed)
            refuse_too_many_records(owners)
            features, labels, codes = features[owners.rows], labels[owners.rows], owners.codes
            self.limits.append((UNITS // owners.counts).numpy())
        if self.recipe.batches > 1:
            codes = content_ids(features, labels) if codes is None else codes
            batch = assign_parts(codes, self.recipe.batches, self.recipe.seed, b"batch")
            self.batch.append(batch.numpy())
        front = self.network.front(features, None)
        self.spool.append(front.reshape(len(front), self.spool.width).numpy())
        self.labels.append(labels.numpy())

    def records(self) -> StreamedRecords:
        batch, limits = (
            np.concatenate(parts) if parts else None for parts in (self.batch, self.limits)
        )
        labels = np.concatenate(self.labels)
        return StreamedRecords.of(
            self.spool, self.shape, labels, batch, self.recipe.batches, limits
        )


def _parts(
    source: ParquetRecords,
    rules: Preprocessing | None,
    network: Network,
    classes: int,
    settings: Settings,
    watch: Any,
) -> Iterator[Part]:
    """Yield checked records; if they have ids or owners, in partitions by those."""

    def numbers(chunk: Chunk) -> Tensor:
        return label_numbers(chunk, rules, classes)

    found = read_chunks(source, rules, network.dtype, numbers, watch)
    if source.id is None and source.person is None:
        for features, labels, _, _ in found:
            yield features, labels, None
        return
    width = record_width(source, rules)
    yield from in_partitions(source, found, width, numpy_type(network.dtype))
