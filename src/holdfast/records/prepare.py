"""Prepare private records for training, in one way for all models and all sources.

Each record passes, alone: the public rules, the checks and the cast to the model's type, the class
number, the id or owner, the choice of surplus records, the member, the batch, and what is kept of
it. So where a record goes depends on the record, its owner's records and public numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..arrays import as_features, check_features
from ..errors import InvalidInput
from ..relations import Neighbours
from ..workers import ProgressCallback, progress_bar
from .dataset import Chunk, Dataset
from .ids import (
    assign_parts,
    content_ids,
    encode_ids,
    encode_owners,
    records_per_owner,
    refuse_equal_ids,
    sort_keys,
    used_records,
)
from .store import MemoryRows, Partitions, RowStore, Spool

Inputs = Callable[[Tensor], Tensor]
"""What is kept of records, such as the output of frozen layers."""


class Split(NamedTuple):
    """The public numbers that decide where a record goes."""

    seed: int
    members: int = 1
    batches: int = 1


class Block(NamedTuple):
    """Some records of one batch.

    `counts` are the numbers of used records of their owners; None if every record is protected by
    itself, or is public.
    """

    features: Tensor
    labels: Tensor
    counts: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Rows:
    """The records of one member, sorted by batch, in memory or on disk."""

    features: RowStore
    shape: tuple[int, ...]  # of the features of one record
    labels: Tensor
    starts: tuple[int, ...]  # where each batch begins, and where the last one ends
    counts: Tensor | None = None

    @classmethod
    def of(cls, features: Tensor, labels: Tensor) -> Rows:
        """Return records in memory as a single batch."""
        store = MemoryRows.of(features)
        return cls(store, tuple(features.shape[1:]), labels, (0, len(labels)))

    def count(self, batch: int) -> int:
        """Return how many records a batch has."""
        return self.starts[batch + 1] - self.starts[batch]

    def blocks(
        self, batch: int, rows: int, first: int = 0, last: int | None = None
    ) -> Iterator[Block]:
        """Yield the batch's records first..last-1, by default all, in blocks of at most `rows`."""
        start, end = self.starts[batch], self.starts[batch + 1]
        end = end if last is None else min(end, start + last)
        for low in range(start + first, end, rows):
            yield self.between(low, min(low + rows, end))

    def first(self, most: int) -> Rows:
        """Return at most so many records of each batch."""
        chosen = [
            np.arange(start, min(start + most, end), dtype=np.int64)
            for start, end in pairwise(self.starts)
        ]
        order = np.concatenate(chosen)
        starts = (0, *np.cumsum([len(each) for each in chosen]).tolist())
        counts = None if self.counts is None else self.counts[order]
        return Rows(self.features.gathered(order), self.shape, self.labels[order], starts, counts)

    def between(self, low: int, high: int) -> Block:
        """Return the records low..high-1, over all batches."""
        features = torch.from_numpy(self.features.read(low, high)).reshape(-1, *self.shape)
        counts = None if self.counts is None else self.counts[low:high]
        return Block(features, self.labels[low:high], counts)


@dataclass(frozen=True, eq=False)
class Prepared:
    """All records that are used; everything but their features is a small number per record.

    There is one store for all members, or one for each of them.
    """

    stores: tuple[RowStore, ...]
    shapes: tuple[tuple[int, ...], ...]  # of what is kept of a record, per store
    batches: int
    labels: NDArray[np.int32]
    member: NDArray[np.int32] | None
    batch: NDArray[np.int32] | None
    counts: NDArray[np.int32] | None
    keys: NDArray[np.int64] | None
    units: int  # records or persons: what `batch_size` counts

    def rows(self, member: int = 0) -> Rows:
        """Return the records of a member, sorted by batch; its own store is closed."""
        own, labels, batch = self._own(member)
        if batch is None:
            return self._rows(member, own, None, labels, batch)
        rows = self._rows(member, own, batch.argsort(kind="stable"), labels, batch)
        if len(self.stores) > 1 or self.member is None:
            self.stores[member].close()
        return rows

    def sorted_rows(self, member: int = 0) -> Rows:
        """Return the records of a member, sorted by batch, class and key.

        Guarantees:
            The order does not depend on that in which the records were given, provided that
            records with equal keys are equal.
        """
        own, labels, batch = self._own(member)
        assert self.keys is not None
        keys = self.keys[own]
        order = np.lexsort((keys, labels) if batch is None else (keys, labels, batch))
        return self._rows(member, own, order, labels, batch)

    def close(self) -> None:
        """Free the stores, if what is needed of them was copied."""
        for store in self.stores:
            store.close()

    def _own(self, member: int) -> tuple[Any, NDArray[np.int32], NDArray[np.int32] | None]:
        """Return which records belong to a member, their labels and their batches."""
        own = slice(None) if self.member is None else np.flatnonzero(self.member == member)
        return own, self.labels[own], None if self.batch is None else self.batch[own]

    def _rows(
        self,
        member: int,
        own: Any,
        order: NDArray[np.int64] | None,
        labels: NDArray[np.int32],
        batch: NDArray[np.int32] | None,
    ) -> Rows:
        shared = len(self.stores) == 1
        number = 0 if shared else member
        store, shape = self.stores[number], self.shapes[number]
        places = order
        if shared and self.member is not None:
            places = own if order is None else own[order]
        counts = None if self.counts is None else self.counts[own]
        starts: tuple[int, ...] = (0, len(labels))
        if batch is not None:
            starts = (0, *np.bincount(batch, minlength=self.batches).cumsum().tolist())
        if order is not None:
            labels, counts = labels[order], None if counts is None else counts[order]
        return Rows(
            store if places is None else store.gathered(places),
            shape,
            torch.from_numpy(labels).long(),
            starts,
            None if counts is None else torch.from_numpy(counts).long(),
        )


class _Part(NamedTuple):
    """Checked records; all records of an owner are in one part."""

    features: Tensor
    labels: Tensor
    codes: list[bytes] | None  # ids or owners as bytes


def prepare(
    data: Dataset,
    split: Split,
    relation: Neighbours,
    *,
    classes: int,
    dtype: torch.dtype,
    inputs: Sequence[tuple[Inputs, tuple[int, ...]]] = (),
    with_keys: bool = False,
    progress: bool = False,
) -> Prepared:
    """Check all records and decide where each of them goes.

    Args:
        data: The records.
        split: The public numbers that decide it.
        relation: The neighbour relation, as `Dataset.relation` returns it.
        classes: The number of classes.
        dtype: The type of the model, in which the content of a record is hashed.
        inputs: For each member, what is kept of its records, and its shape; none: the records
            themselves, in one store for all members.
        with_keys: Whether to compute a key for each record, by which heads sort them.
        progress: Whether to show a progress bar while files are read.

    Raises:
        InvalidInput: If a record, label, id or owner is not valid, or ids are needed.

    Guarantees:
        The member and the batch of a record depend on its own id, content or owner and on public
        numbers. Which records of an owner are used depends on the records of that owner alone.
    """
    refuse_missing_ids(data, split, relation)
    collected = _Collected(data, split, with_keys, dtype, inputs)
    in_parts = data.source.in_parts
    with progress_bar(
        "reading", data.count if in_parts else 1, progress and in_parts
    ) as on_progress:
        for part in _parts(data, classes, dtype, on_progress):
            collected.add(part)
    return collected.prepared()


def refuse_empty(data: Dataset) -> None:
    """Raise InvalidInput if files hold no records, before they are read."""
    if data.source.in_parts and not data.count:
        raise InvalidInput(f"{data.source.place}: holds no records, there is nothing to train on")


def refuse_missing_ids(data: Dataset, split: Split, relation: Neighbours) -> None:
    """Raise InvalidInput if an exchanged record would not keep its batch and member."""
    parts = {"members": split.members, "batches": split.batches}
    several = [f"{name}={count}" for name, count in parts.items() if count > 1]
    keyed = data.source.has_ids or data.source.has_persons
    if several and relation.exchanges and not keyed:
        raise InvalidInput(
            f"{', '.join(several)} under 'replace' needs ids: an exchanged record keeps its id, "
            "and with it its member and batch; give ids (or the column id= of a file), or use "
            "'add_remove'"
        )


def normaliser(
    batch_size: int | None, relation: Neighbours, units: int, split: Split, public: int = 0
) -> int:
    """Return the public number by which a sum of gradients is divided.

    Args:
        batch_size: The number that the recipe gives, or None.
        relation: The neighbour relation; only under an exchange the number of records is public.
        units: The number of records or persons.
        split: The numbers of members and batches.
        public: The number of public records in every batch.

    Raises:
        InvalidInput: If it is not given, and the number of records is private.
    """
    if batch_size is not None:
        return batch_size
    if not relation.exchanges:
        unit = relation.unit
        raise InvalidInput(
            f"batch_size=None: under {relation.value!r} the number of {unit}s is private, "
            "so the normaliser must be a public number; give a round one that you would choose "
            "without looking at the table, "
            f"for example batch_size=1000 if you expect about a thousand {unit}s per batch"
        )
    return max(1, -(-units // (split.members * split.batches)) + public)


def _new_store(data: Dataset, shape: tuple[int, ...], dtype: torch.dtype) -> RowStore:
    width, kind = math.prod(shape), torch.empty(0, dtype=dtype).numpy().dtype
    return Spool(width, kind) if data.source.in_parts else MemoryRows(width, kind)


class _Collected:
    """Records on their way to the stores, with what was decided about each of them."""

    def __init__(
        self,
        data: Dataset,
        split: Split,
        with_keys: bool,
        dtype: torch.dtype,
        inputs: Sequence[tuple[Inputs, tuple[int, ...]]],
    ) -> None:
        self._data, self._split, self._with_keys = data, split, with_keys
        self._inputs = [kept for kept, _ in inputs]
        self._shapes = tuple(shape for _, shape in inputs) or (data.record_shape,)
        self._stores = tuple(_new_store(data, shape, dtype) for shape in self._shapes)
        self._units = 0
        names = ("labels", "member", "batch", "counts", "keys")
        self._columns: dict[str, list[NDArray[Any]]] = {name: [] for name in names}

    def add(self, part: _Part) -> None:
        features, labels, codes = part
        seed, members, batches = self._split
        several = members > 1 or batches > 1
        contents = None
        if self._data.per_person:
            assert codes is not None
            most = self._data.max_records_per_person
            if most is not None or self._with_keys:
                contents = content_ids(features, labels)
            if most is not None:
                assert contents is not None
                rows = used_records(codes, most, contents, seed)
                features, labels = features[rows], labels[rows]
                codes, contents = [codes[row] for row in rows], [contents[row] for row in rows]
            self._columns["counts"].append(records_per_owner(codes))
            self._units += len(set(codes))
        else:
            if codes is None and (several or self._with_keys):
                codes = content_ids(features, labels)
            self._units += len(labels)
        self._columns["labels"].append(labels.numpy().astype(np.int32))
        member = None
        if members > 1:
            assert codes is not None
            member = assign_parts(codes, members, seed, b"member").numpy().astype(np.int32)
            self._columns["member"].append(member)
        if batches > 1:
            assert codes is not None
            batch = assign_parts(codes, batches, seed, b"batch").numpy().astype(np.int32)
            self._columns["batch"].append(batch)
        if self._with_keys:
            assert codes is not None
            named = codes
            if self._data.per_person:
                assert contents is not None
                named = [code + content for code, content in zip(codes, contents, strict=True)]
            self._columns["keys"].append(sort_keys(named, seed))
        self._store(features, member)

    def _store(self, features: Tensor, member: NDArray[np.int32] | None) -> None:
        if not self._inputs:
            self._stores[0].append(features.flatten(1).numpy())
            return
        for number, (kept, store) in enumerate(zip(self._inputs, self._stores, strict=True)):
            own = features if member is None else features[torch.from_numpy(member == number)]
            if len(own):
                store.append(kept(own).reshape(len(own), store.width).contiguous().numpy())

    def prepared(self) -> Prepared:
        joined: dict[str, NDArray[Any] | None] = {}
        for name in list(self._columns):
            parts = self._columns.pop(name)  # so that little is in memory twice
            joined[name] = np.concatenate(parts) if parts else None
        labels = joined.pop("labels")
        assert labels is not None
        return Prepared(
            self._stores, self._shapes, self._split.batches, labels, units=self._units, **joined
        )


def _parts(
    data: Dataset, classes: int, dtype: torch.dtype, on_progress: ProgressCallback | None
) -> Iterator[_Part]:
    """Yield checked records; those in files that have ids or owners, in partitions by those."""
    source = data.source
    chunks = _checked_chunks(data, classes, dtype, on_progress)
    if not source.in_parts or not (source.has_ids or source.has_persons):
        for features, labels, codes, rows in chunks:
            if codes is not None and source.has_ids:
                refuse_equal_ids(codes, rows)
            yield _Part(features, labels, codes)
        return
    kind = torch.empty(0, dtype=dtype).numpy().dtype
    partitions = Partitions(data.count, math.prod(data.record_shape), kind)
    for features, labels, codes, rows in chunks:
        assert codes is not None
        partitions.append(features.numpy(), labels.numpy(), codes, rows.start)
    for features, labels, codes, numbers in partitions:
        if source.has_ids:
            refuse_equal_ids(codes, numbers.tolist())
        yield _Part(features, labels, codes)


def _checked_chunks(
    data: Dataset, classes: int, dtype: torch.dtype, on_progress: ProgressCallback | None
) -> Iterator[tuple[Tensor, Tensor, list[bytes] | None, range]]:
    """Yield features, labels, ids or owners as bytes, and the numbers of the rows.

    Raises:
        InvalidInput: If a value is not valid, or, at the end, if the rules were fitted on the
            records.
    """
    rules = data.preprocessing
    columns = None if rules is None or not rules.columns else [c.name for c in rules.columns]
    fitted, count, kinds = 0, 0, set[bytes]()
    for chunk in data.source.chunks(columns):
        x: Any = chunk.x
        if rules is not None:
            x, shared = rules.apply_part(x, chunk.place)
            fitted += shared
        given = as_features(x, chunk.place)
        if not len(given):
            raise InvalidInput(f"{chunk.place} is empty: there is nothing to train on")
        if not given.numel():
            raise InvalidInput(
                f"{chunk.place} has shape {tuple(given.shape)}: there is nothing to train on"
            )
        features = check_features(given, dtype, chunk.place)
        labels = data.class_numbers(chunk.y, len(features), classes, chunk.label_place)
        rows = range(chunk.first, chunk.first + len(features))
        if not data.source.in_parts and rules is not None:  # before anything is computed from them
            rules.refuse_fitted_rows(fitted, len(features))
        yield features, labels, _codes(chunk, len(features), kinds), rows
        count += len(features)
        if on_progress is not None:
            on_progress(len(features))
    if data.source.in_parts and count != data.count:
        raise InvalidInput(
            f"{data.source.place}: {data.count:,} records when it was opened, and {count:,} when "
            "it was read; make a new hf.Dataset, and leave the files alone while training runs"
        )
    if rules is not None and data.source.in_parts:
        rules.refuse_fitted_rows(fitted, count)


def _codes(chunk: Chunk, rows: int, kinds: set[bytes]) -> list[bytes] | None:
    """Return the ids or the owners; raise if owners are numbers here and strings elsewhere."""
    named = "" if chunk.place == "x" else f"{chunk.place}, "
    if chunk.persons is None:
        return None if chunk.ids is None else encode_ids(f"{named}ids", chunk.ids, rows)
    codes = encode_owners(chunk.persons, rows, f"{named}persons")
    kinds |= {code[:4] for code in codes}
    if len(kinds) > 1:
        raise InvalidInput(f"{chunk.place}: owners are both numbers and strings; convert them")
    return codes
