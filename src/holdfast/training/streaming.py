"""Streaming: prepare training on a table that is larger than memory.

The records are read once, checked and preprocessed in parts, and kept on disk as the network sees
them. Each record passes the same checks, hashes and rules as in memory, alone; and sums over
records are exact, so the result is the same to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor, nn

from ..arrays import check_features, check_labels
from ..errors import InvalidInput
from ..kernels import UNITS
from ..layers import Network
from ..preprocessing import Preprocessing
from ..records import Chunk, ParquetRecords, Persons, Spool, assign_parts, content_ids, owner_codes
from ..records.ids import id_codes, refuse_equal_ids
from ..records.partitions import Partitions
from ..records.streamed import StreamedRecords
from ..relations import Neighbours
from ..workers import progress_bar
from .job import Job
from .preparation import (
    Settings,
    checked_network,
    distance_grid,
    public_records,
    refuse_other_recipes,
    refuse_too_many_records,
    refuse_unlike_members,
    with_batch_size,
)
from .recipe import Recipe


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


def record_width(source: ParquetRecords, rules: Preprocessing | None) -> int:
    """Return the number of features of one record."""
    if rules is not None and rules.width is not None:
        return rules.width
    source.require_numbers()
    if not source.columns:
        raise InvalidInput(f"{source.path}: has no column of features")
    return len(source.columns)


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


def numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    """Return numpy's type for a type of torch."""
    return torch.empty(0, dtype=dtype).numpy().dtype


Part = tuple[Tensor, Tensor, list[bytes] | None]
ReadChunk = tuple[Tensor, Tensor, list[bytes] | None, int]


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


def in_partitions(
    source: ParquetRecords, chunks: Iterator[ReadChunk], width: int, dtype: DTypeLike
) -> Iterator[tuple[Tensor, Tensor, list[bytes]]]:
    """Yield records with their ids or owners, all of one owner together.

    Raises:
        InvalidInput: If an id occurs twice.
    """
    partitions = Partitions(source.count, width, dtype)
    for features, labels, codes, first in chunks:
        assert codes is not None
        partitions.append(features.numpy(), labels.numpy(), codes, first)
    for features, labels, codes, rows in partitions:
        if source.id is not None:
            refuse_equal_ids(codes, rows.tolist())
        yield features, labels, codes


def read_chunks(
    source: ParquetRecords,
    rules: Preprocessing | None,
    dtype: torch.dtype,
    labels_of: Callable[[Chunk], Tensor],
    watch: Any,
) -> Iterator[ReadChunk]:
    """Yield features, labels, ids or owners as bytes, and the number of the first row.

    Raises:
        InvalidInput: If a value is not valid, or, at the end, if the rules were fitted on the
            records.
    """
    columns = None if rules is None or not rules.columns else [c.name for c in rules.columns]
    shared, count, kinds = 0, 0, set[bytes]()
    for chunk in source.chunks(columns):
        x: Any = chunk.table if columns is not None else chunk.numbers()
        if rules is not None:
            x, found = rules.apply_part(x, chunk.place)
            shared += found
        features = check_features(x, dtype, chunk.place)
        yield features, labels_of(chunk), _codes(chunk, kinds), chunk.first
        count += len(features)
        if watch is not None:
            watch(len(features))
    if count != source.count:
        raise InvalidInput(
            f"{source.path}: {source.count:,} records when it was opened, and {count:,} when it "
            "was read; make a new hf.ParquetRecords, and leave the files alone while training runs"
        )
    if rules is not None:
        rules.refuse_shared(shared, source.count)


def label_numbers(chunk: Chunk, rules: Preprocessing | None, classes: int) -> Tensor:
    """Return the labels of a chunk: names of the rules' classes, or numbers without them."""
    if rules is not None and rules.classes:
        return rules.labels(chunk.labels, f"{chunk.place}, labels")
    if any(not isinstance(label, int) or abs(label) >= 2**63 for label in chunk.labels):
        raise InvalidInput(
            f"{chunk.place}: expected labels that are whole numbers 0..{classes - 1}; name the "
            "classes in a schema"
        )
    labels = torch.tensor(chunk.labels, dtype=torch.int64)
    return check_labels(labels, len(labels), classes, f"{chunk.place}, labels")


def _codes(chunk: Chunk, kinds: set[bytes]) -> list[bytes] | None:
    """Return the ids or the owners; raise if owners are numbers here and strings elsewhere."""
    if chunk.persons is None:
        count = len(chunk.labels)
        return None if chunk.ids is None else id_codes(f"{chunk.place}, ids", chunk.ids, count)
    try:
        codes = owner_codes(chunk.persons, len(chunk.labels))
    except InvalidInput as error:
        raise InvalidInput(f"{chunk.place}: {error}") from None
    kinds |= {code[:4] for code in codes}
    if len(kinds) > 1:
        raise InvalidInput(f"{chunk.place}: owners are both numbers and strings; convert them")
    return codes
