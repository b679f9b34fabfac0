"""The records of `train_linear`: read and checked, in memory or on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..arrays import Floats, Integers, as_features, check_features
from ..errors import InvalidInput
from ..heads import LinearRecipe
from ..heads.descent import HeadRecords, HeadSource
from ..heads.head_inputs import HeadInputs
from ..heads.multiclass import Scheme
from ..heads.streamed_heads import StreamedHeadRecords
from ..preprocessing import Preprocessing
from ..records import Chunk, ParquetRecords, Spool, assign_parts, hash_codes, part_rows
from ..relations import Neighbours
from ..training.streaming import in_partitions, label_numbers, read_chunks, record_width
from ..workers import ProgressCallback, progress_bar
from .head_arguments import OwnedRecords, class_numbers, record_codes

_SAMPLE = 50_000  # records of a table on disk by which the owner is warned


@dataclass(frozen=True)
class Sample:
    """Records by which the owner is warned of a poor head: all that are in memory, or some."""

    features: Floats
    norms: Floats
    offsets: Floats
    labels: Tensor


class EncodedRecords(Protocol):
    """Records as heads see them."""

    @property
    def sample(self) -> Sample: ...
    def arranged(self, member: int, batches: int) -> HeadSource:
        """Return the records of a member, in the order in which they are added up."""


class PreparedRecords(Protocol):
    """Records before the encoder; `count` is their number, `owners` that of their owners."""

    @property
    def record_shape(self) -> tuple[int, ...]: ...
    @property
    def count(self) -> int: ...
    @property
    def owners(self) -> int: ...
    def encoded(
        self, inputs: HeadInputs, scheme: Scheme, watch: ProgressCallback | None
    ) -> EncodedRecords: ...


@dataclass(frozen=True, eq=False)
class Assigned:
    """What a hash of its id or owner, and of its content, decides about each record.

    Small numbers are kept small: a table on disk may have very many records.
    """

    labels: NDArray[Any]  # int32, like batch and member
    hashes: Integers
    batch: NDArray[Any]
    member: NDArray[Any]
    shares: Floats

    @classmethod
    def of(cls, owned: OwnedRecords, recipe: LinearRecipe, members: int) -> Assigned:
        batch = assign_parts(owned.owners, recipe.batches, recipe.seed, b"batch").numpy()
        member = assign_parts(owned.owners, members, recipe.seed, b"member").numpy()
        labels, hashes = owned.labels.numpy(), hash_codes(owned.keys, recipe.seed)
        small = (numbers.astype(np.int32) for numbers in (labels, batch, member))
        labels, batch, member = small
        return cls(labels, hashes, batch, member, owned.shares)

    @classmethod
    def joined(cls, parts: list[Assigned]) -> Assigned:
        """Return all parts as one; the list is emptied, so that little is in memory twice."""
        names = [field.name for field in fields(cls)]
        columns = {name: [getattr(part, name) for part in parts] for name in names}
        parts.clear()
        return cls(**{name: np.concatenate(columns.pop(name)) for name in names})

    def rows(self, member: int) -> Assigned:
        """Return what belongs to the records of a member."""
        chosen = self.member == member
        if chosen.all():
            return self
        return Assigned(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True, eq=False)
class RecordsInMemory:
    """Records in memory."""

    records: Tensor
    assigned: Assigned
    owners: int
    sample: Sample = Sample(np.empty((0, 0)), np.empty(0), np.empty((0, 0)), torch.empty(0))

    @property
    def record_shape(self) -> tuple[int, ...]:
        return tuple(self.records.shape[1:])

    @property
    def count(self) -> int:
        return len(self.records)

    def encoded(
        self, inputs: HeadInputs, scheme: Scheme, watch: ProgressCallback | None
    ) -> EncodedRecords:
        labels = torch.from_numpy(self.assigned.labels).long()
        return _EncodedInMemory(self.assigned, Sample(*inputs(self.records, scheme, watch), labels))


@dataclass(frozen=True, eq=False)
class _EncodedInMemory:
    assigned: Assigned
    sample: Sample

    def arranged(self, member: int, batches: int) -> HeadSource:
        chosen, own, all_ = self.assigned.member == member, self.assigned.rows(member), self.sample
        return HeadRecords.arrange(
            all_.features[chosen],
            all_.norms[chosen],
            own.shares,
            all_.offsets[chosen],
            own.labels,
            own.batch,
            own.hashes,
            batches,
        )


@dataclass(frozen=True, eq=False)
class RecordsOnDisk:
    """Records in a spool, in the order in which they were read."""

    records: Spool
    assigned: Assigned
    owners: int
    record_shape: tuple[int, ...]
    members: int

    @property
    def count(self) -> int:
        return self.records.rows

    def encoded(
        self, inputs: HeadInputs, scheme: Scheme, watch: ProgressCallback | None
    ) -> EncodedRecords:
        most = min(_SAMPLE, part_rows(8 * self.records.width), self.records.rows)
        some = torch.from_numpy(self.records.read(0, most))
        labels = torch.from_numpy(self.assigned.labels[: len(some)]).long()
        sample = Sample(*inputs(some.reshape(-1, *self.record_shape), scheme, None), labels)
        return _EncodedOnDisk(self, inputs, scheme, sample)


@dataclass(frozen=True, eq=False)
class _EncodedOnDisk:
    records: RecordsOnDisk
    inputs: HeadInputs
    scheme: Scheme
    sample: Sample

    def arranged(self, member: int, batches: int) -> HeadSource:
        assigned = self.records.assigned
        own = assigned.rows(member)
        arranged = StreamedHeadRecords.arrange(
            self.records.records,
            np.flatnonzero(assigned.member == member),
            own.labels,
            own.batch,
            own.hashes,
            own.shares,
            batches,
            self.inputs,
            self.scheme,
        )
        if member == self.records.members - 1:
            self.records.records.close()  # as large as what was arranged
        return arranged


@dataclass(frozen=True)
class Reading:
    """How records are read: the arguments of `train_linear` that decide it."""

    recipe: LinearRecipe
    relation: Neighbours
    members: int
    rules: Preprocessing | None
    classes: int
    names: tuple[str, ...]
    ids: Iterable[Any] | None
    persons: tuple[Iterable[Any] | None, int | None]

    def in_memory(self, x: Any, y: Any) -> RecordsInMemory:
        """Return records that are given as an array or table."""
        x = as_features(x) if self.rules is None else self.rules.apply_private(x)
        if not x.numel():
            raise InvalidInput(f"x has shape {tuple(x.shape)}: there is nothing to train on")
        records = check_features(x, torch.float64)
        labels = class_numbers(y, len(records), self.classes, self.names)
        if self.persons[0] is None:
            codes = record_codes(
                records, labels, self.ids, self.recipe, self.relation, self.members
            )
            owned = OwnedRecords.each_alone(records, labels, codes)
        else:
            owned = OwnedRecords.of(records, labels, *self.persons, self.recipe.seed)
        assigned = Assigned.of(owned, self.recipe, self.members)
        return RecordsInMemory(owned.records, assigned, self._owners(owned))

    def on_disk(self, source: ParquetRecords, y: Any, progress: bool) -> RecordsOnDisk:
        """Return records of files, read in parts."""
        if y is not None or self.ids is not None or self.persons[0] is not None:
            raise InvalidInput(
                "y, ids and persons are columns of hf.ParquetRecords: name them there, and pass "
                "y=None"
            )
        if not source.count:
            raise InvalidInput(f"{source.path}: holds no records, there is nothing to train on")
        spool = Spool(record_width(source, self.rules), np.float64)
        parts, owners = [], 0
        with progress_bar("reading", source.count, progress) as watch:
            for owned in self._parts(source, watch):
                spool.append(owned.records.numpy())
                parts.append(Assigned.of(owned, self.recipe, self.members))
                owners += self._owners(owned)
        assigned = Assigned.joined(parts)
        return RecordsOnDisk(spool, assigned, owners, (spool.width,), self.members)

    def _owners(self, owned: OwnedRecords) -> int:
        per_person = self.relation.unit == "person"
        return len(set(owned.owners)) if per_person else len(owned.owners)

    def _parts(
        self, source: ParquetRecords, watch: ProgressCallback | None
    ) -> Iterator[OwnedRecords]:
        """Yield records with their owners; those with ids or owners in partitions."""
        found = read_chunks(source, self.rules, torch.float64, self._labels, watch)
        if source.id is None and source.person is None:
            for features, labels, _, _ in found:
                codes = record_codes(
                    features, labels, None, self.recipe, self.relation, self.members
                )
                yield OwnedRecords.each_alone(features, labels, codes)
            return
        width = record_width(source, self.rules)
        for features, labels, codes in in_partitions(source, found, width, np.float64):
            if source.id is not None:
                yield OwnedRecords.each_alone(features, labels, codes)
            else:
                most, seed = self.persons[1], self.recipe.seed
                yield OwnedRecords.of_codes(features, labels, codes, most, seed)

    def _labels(self, chunk: Chunk) -> Tensor:
        if self.names and not (self.rules is not None and self.rules.classes):
            try:
                return class_numbers(chunk.labels, len(chunk.labels), self.classes, self.names)
            except InvalidInput as error:
                raise InvalidInput(f"{chunk.place}: {error}") from None
        return label_numbers(chunk, self.rules, self.classes)
