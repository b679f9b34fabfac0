"""Training of linear heads: `train_linear`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..arrays import Floats, Integers, as_features, check_features, check_labels
from ..certificates import warn_after_training
from ..checks import check_integer, check_new_name
from ..engines import check_engine, open_engine
from ..errors import InvalidInput, warn
from ..models import CertifiedEnsemble, EnsemblePart, Estimate, saved_size
from ..preprocessing import Preprocessing
from ..records import (
    PARTS_MEMORY,
    Chunk,
    ParquetRecords,
    Persons,
    Spool,
    assign_parts,
    content_ids,
    given_ids,
    hash_codes,
    owner_codes,
    part_rows,
    relation_for,
)
from ..records.prepare import in_partitions, label_numbers, read_chunks, record_width
from ..relations import Neighbours
from ..workers import ProgressCallback, progress_bar
from .ball import FARTHEST, Schedule
from .certified import CertifiedHead
from .descent import HeadRecords, HeadSource, StreamedHeadRecords, descend
from .loops import scores
from .recipe import LinearRecipe
from .schemes import BIAS, HeadInputs, Scheme, make_scheme


def head_relation(neighbours: Neighbours | str) -> Neighbours:
    """Return the relation; raise InvalidInput if it is not one that heads are certified for."""
    relation = Neighbours.of(neighbours)
    if relation is Neighbours.REMOVE:
        raise InvalidInput(
            "neighbours='remove': a head is certified under 'add_remove', whose distances hold for "
            "removals too, or under 'replace'"
        )
    return relation


def distance_cap(max_distance: int | None) -> int | None:
    """Return the largest distance that a certificate states, or None."""
    if max_distance is None:
        return None
    cap = check_integer("max_distance", max_distance, 1)
    if cap > FARTHEST:
        raise InvalidInput(f"max_distance={cap}: expected at most {FARTHEST:,}, or None")
    return cap


def class_count_and_names(
    classes: int | Sequence[Any] | None, rules: Preprocessing | None
) -> tuple[int, tuple[str, ...]]:
    """Return the number of classes and the names that the caller gave them, if any."""
    declared = () if rules is None else rules.classes
    if classes is None:
        if not declared:
            raise InvalidInput(
                "classes=None: the set of labels is public and must not be read off the private "
                "records; give their number or their names, for example classes=2"
            )
        return len(declared), ()
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        names: tuple[str, ...] = ()
        count = check_integer("classes", classes, 2)
    else:
        names = tuple(str(name) for name in classes)
        count = len(names)
        if count < 2 or len(set(names)) != count:
            raise InvalidInput(f"classes={list(names)}: expected at least 2 classes, each once")
    if declared and (count != len(declared) or (names and names != declared)):
        raise InvalidInput(
            f"classes={classes!r}, but the schema names {list(declared)}: expected the same"
        )
    return count, names


def class_numbers(y: Any, rows: int, count: int, names: tuple[str, ...]) -> Tensor:
    """Return labels as numbers, whether they are given as numbers or as names."""
    if not names:
        return check_labels(y, rows, count)
    places = {name: number for number, name in enumerate(names)}
    values = y.tolist() if isinstance(y, Tensor | np.ndarray) else list(y)
    unknown = next((row for row, value in enumerate(values) if str(value) not in places), None)
    if unknown is not None:
        raise InvalidInput(
            f"y[{unknown}] = {values[unknown]!r}: expected one of the classes {list(names)}"
        )
    return check_labels(torch.tensor([places[str(value)] for value in values]), rows, count)


def default_batch_size(
    recipe: LinearRecipe, relation: Neighbours, owners: int, members: int
) -> int:
    """Return the normaliser if the number of records or persons is public, as under `replace`."""
    if not relation.exchanges:
        raise InvalidInput(
            f"batch_size=None: under {relation.value!r} the number of {relation.unit}s is private, "
            f"so the normaliser must be a public number; give about how many {relation.unit}s you "
            "expect, for example batch_size=1000"
        )
    return max(1, -(-owners // (recipe.batches * members)))


@dataclass(frozen=True, eq=False)
class OwnedRecords:
    """Records with their owners: the records themselves, or the persons that they belong to.

    Args:
        records: The features before the encoder.
        labels: The labels.
        owners: The owner of each record, who decides its batch and member.
        shares: The share of each record in its owner: 1 / (number of the owner's records).
        keys: An id of each record, by which records are put in an order of their own. Records with
            equal keys are equal.
    """

    records: Tensor
    labels: Tensor
    owners: list[bytes]
    shares: Floats
    keys: list[bytes]

    @classmethod
    def of(
        cls, records: Tensor, labels: Tensor, persons: Any, most: int | None, seed: int
    ) -> OwnedRecords:
        """Return the records of persons, at most `most` of each."""
        return cls.of_codes(records, labels, owner_codes(persons, len(labels)), most, seed)

    @classmethod
    def of_codes(
        cls, records: Tensor, labels: Tensor, owners: list[bytes], most: int | None, seed: int
    ) -> OwnedRecords:
        """Return the records of persons, who are given as `owner_codes` returns them."""
        found = Persons.of_codes(owners, most, records, labels, seed)
        records, labels = records[found.rows], labels[found.rows]
        contents = content_ids(records, labels)
        keys = [code + content for code, content in zip(found.codes, contents, strict=True)]
        return cls(records, labels, found.codes, 1.0 / found.counts.double().numpy(), keys)

    @classmethod
    def each_alone(cls, records: Tensor, labels: Tensor, codes: list[bytes]) -> OwnedRecords:
        """Return records that are protected one by one."""
        return cls(records, labels, codes, np.ones(len(labels)), codes)


def refuse_exchanges_between_members(relation: Neighbours, members: int) -> None:
    """Raise InvalidInput for an ensemble per exchanged person.

    An exchanged person has another id, and with it perhaps another member: one move would change
    two members.
    """
    if relation is Neighbours.REPLACE_PERSON and members > 1:
        raise InvalidInput(
            f"members={members} under 'replace' with persons is not available: an exchange could "
            "change two members; use 'add_remove', under which it counts as two moves"
        )


def record_codes(
    records: Tensor,
    labels: Tensor,
    ids: Iterable[Any] | None,
    recipe: LinearRecipe,
    relation: Neighbours,
    members: int,
) -> list[bytes]:
    """Return the id of each record as bytes; raise InvalidInput if the relation needs ids."""
    if ids is not None:
        return given_ids(ids, len(labels))
    if relation.exchanges and (members > 1 or recipe.batches > 1):
        raise InvalidInput(
            f"members={members}, batches={recipe.batches} under 'replace' needs ids: an exchanged "
            "record keeps its id, and with it its member and batch; pass ids=, or use 'add_remove'"
        )
    return content_ids(records, labels)


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


_TRIAL_TRAVEL = 5.0  # of the run from which time is estimated


def train_linear(
    x: Any,
    y: Any,
    recipe: LinearRecipe,
    *,
    classes: int | Sequence[Any] | None = None,
    neighbours: Neighbours | str = "add_remove",
    max_distance: int | None = None,
    members: int = 1,
    multiclass: str = "pairs",
    encoder: nn.Module | None = None,
    offset: nn.Module | None = None,
    preprocessing: Preprocessing | None = None,
    ids: Iterable[Any] | None = None,
    persons: Iterable[Any] | None = None,
    max_records_per_person: int | None = None,
    engine: str = "local",
    dataset: str = "default",
    progress: bool = True,
) -> CertifiedHead | CertifiedEnsemble:
    """Train a linear head on public features, with certificates for every distance.

    The loss is convex, so k moves change the weights by at most k times a number that is known
    before training, whatever the records are and however many steps are taken. Distances have no
    cap, and certifying a query takes one product.

    Args:
        x: The private features, one row per record: a tensor, an array, or a table if
            `preprocessing` names columns; or `hf.ParquetRecords`, which may be larger than memory.
        y: The labels, one per record: numbers from 0 on, or names if `classes` are names; None for
            `hf.ParquetRecords`.
        recipe: How to train. All of it is public.
        classes: The number of classes, or their names in order. They are public and never read off
            y. None is allowed if the preprocessing names them.
        neighbours: The neighbour relation: "add_remove" or "replace".
        max_distance: The largest distance that a certificate states; None: no cap.
        members: The number of heads, trained on disjoint parts of the records, that vote. The
            recipe's batch size is that of each member.
        multiclass: "pairs", one head per pair of classes; "one_vs_rest" (which "pairs" means for
            more than 30 classes); or "softmax", which suits a release of the weights.
        encoder: A public torch module from records to features; it is frozen. None: the records are
            the features.
        offset: A public torch module from records to logits, which are added to the head's scores.
        preprocessing: Public rules that compute the features of x and of every query.
        ids: One unique integer or string per record. Without it, the id of a record is a hash of
            its content.
        persons: The owner of each record, an integer or a string: privacy is then per person, and
            the recipe's batch size is a public number of persons. A person's records share a batch
            and a member, and their gradients are averaged.
        max_records_per_person: The most records of one person that are used; a hash of the records
            chooses them. None: all of them.
        engine: Where the work runs: "local" or "ray", as for `train`.
        dataset: The owner's name for the private data; a budget in the ledger belongs to it.
        progress: Whether to show a progress bar.

    Returns:
        The head or, for several members, an ensemble. It is NOT private.

    Raises:
        InvalidInput: If an argument is not valid; raised before any work.
        UnsupportedModel: If encoder or offset is not a module that maps one record to one row.
        EngineUnavailable: If Ray cannot be reached, or loses too many workers.

    Example:
        >>> import holdfast as hf, torch
        >>> x, y = torch.tensor([[-1.0], [1.0]] * 200), torch.tensor([0, 1] * 200)
        >>> recipe = hf.LinearRecipe(batch_size=400, travel=10.0)
        >>> head = hf.train_linear(x, y, recipe, classes=2, progress=False)
        >>> bool(head.certify([[1.0]]).distances > 100)
        True
    """
    members, engine = check_integer("members", members, 1), check_engine(engine)
    in_files = isinstance(x, ParquetRecords)
    relation = relation_for(
        neighbours,
        x.id if in_files else ids,
        x.person if in_files else persons,
        max_records_per_person,
    )
    relation = head_relation(relation)
    refuse_exchanges_between_members(relation, members)
    job = _prepare(
        x,
        y,
        recipe,
        classes=classes,
        relation=relation,
        max_distance=distance_cap(max_distance),
        members=members,
        multiclass=multiclass,
        modules=(encoder, offset),
        preprocessing=preprocessing,
        ids=ids,
        persons=(persons, max_records_per_person),
        dataset=check_new_name("dataset", dataset),
        progress=progress,
    )
    return job.train(progress, engine)


def estimate_linear_training(
    x: Any, y: Any, recipe: LinearRecipe, *, members: int = 1, **settings: Any
) -> Estimate:
    """Estimate the time, memory and file size of `train_linear`.

    A few steps are run on all records. The arguments are those of `train_linear`.

    Returns:
        About how much the whole run takes. NOT private.
    """
    trial = replace(recipe, travel=_TRIAL_TRAVEL)
    settings |= {"members": members, "progress": False}
    for name in ("ids", "persons"):  # which are read twice
        if isinstance(settings.get(name), Iterator):
            settings[name] = list(settings[name])
    train_linear(x, y, trial, **settings)  # compiles the loops
    started = time.monotonic()
    trained = train_linear(x, y, trial, **settings)
    seconds = time.monotonic() - started
    first = trained.members[0]
    assert isinstance(first, CertifiedHead)
    bend = first.scheme.loss(recipe).curvature
    steps = [Schedule.of(each, bend).count for each in (recipe, trial)]
    # Numbers about each record, and its features, unless they are on disk.
    on_disk = isinstance(x, ParquetRecords)
    held = 3 * 8 * (x.count * 16 if on_disk else len(y) * first.inputs.width)
    held += PARTS_MEMORY if on_disk else 0
    return Estimate(seconds * steps[0] / steps[1], held, saved_size(trained))


@dataclass(frozen=True, eq=False)
class _Job:
    """Everything that training needs, checked."""

    records: PreparedRecords
    recipe: LinearRecipe
    scheme: Scheme
    inputs: HeadInputs
    head: CertifiedHead  # with weights of 0
    members: int

    def train(self, progress: bool, engine: str) -> CertifiedHead | CertifiedEnsemble:
        with progress_bar("encoder", self.records.count, progress and self._slow) as watch:
            encoded = self.records.encoded(self.inputs, self.scheme, watch)
        _warn_owner(encoded.sample, self)
        trained = []
        schedule = Schedule.of(self.recipe, self.scheme.loss(self.recipe).curvature)
        work, call = schedule.count * self.members, secrets.token_hex(16)
        with open_engine(engine) as opened, progress_bar("training", work, progress) as watch:
            for member in range(self.members):
                records = encoded.arranged(member, self.recipe.batches)
                weights = descend(self.recipe, self.scheme, records, watch, opened)
                part = EnsemblePart(self.recipe.seed, self.members, member, call)
                trained.append(
                    replace(
                        self.head,
                        weights=torch.from_numpy(weights),
                        run_id=secrets.token_hex(16),
                        part=None if self.members == 1 else part,
                    )
                )
        if self.members == 1:
            _warn_if_useless(trained[0], encoded.sample)
            return trained[0]
        rules = self.head.preprocessing
        return CertifiedEnsemble(
            tuple(replace(head, preprocessing=None) for head in trained), rules
        )

    @property
    def _slow(self) -> bool:
        return self.inputs.encoder is not None and self.inputs.encoder.has_user_layers


def _prepare(
    x: Any,
    y: Any,
    recipe: LinearRecipe,
    *,
    classes: int | Sequence[Any] | None,
    relation: Neighbours,
    max_distance: int | None,
    members: int,
    multiclass: str,
    modules: tuple[Any, Any],
    preprocessing: Preprocessing | None,
    ids: Iterable[Any] | None,
    persons: tuple[Iterable[Any] | None, int | None],
    dataset: str,
    progress: bool,
) -> _Job:
    if not isinstance(recipe, LinearRecipe):
        raise InvalidInput(f"recipe is a {type(recipe).__name__}: expected an hf.LinearRecipe")
    if not isinstance(preprocessing, Preprocessing | None):
        raise InvalidInput(
            f"preprocessing is a {type(preprocessing).__name__}: expected an hf.Preprocessing"
        )
    number, names = class_count_and_names(classes, preprocessing)
    scheme = make_scheme(multiclass, number)
    reading = Reading(recipe, relation, members, preprocessing, number, names, ids, persons)
    records: PreparedRecords = (
        reading.on_disk(x, y, progress)
        if isinstance(x, ParquetRecords)
        else reading.in_memory(x, y)
    )
    scale = recipe.scale
    if scale is None and modules[0] is None and preprocessing is not None:
        norm = preprocessing.typical_norm
        scale = None if norm is None else 1.0 / norm
    inputs = HeadInputs.of(records.record_shape, *modules, number, scale, recipe.radius)
    size = recipe.batch_size or default_batch_size(recipe, relation, records.owners, members)
    recipe = replace(recipe, scale=inputs.scale, batch_size=size)
    Schedule.of(recipe, scheme.loss(recipe).curvature)  # raises if there are too many steps
    head = CertifiedHead(
        weights=torch.zeros(scheme.heads, inputs.width, dtype=torch.float64),
        scheme=scheme,
        inputs=inputs,
        recipe=recipe,
        neighbours=relation,
        dataset=dataset,
        run_id="",
        max_distance=max_distance,
        max_records_per_person=persons[1],
        names=names,
        preprocessing=preprocessing,
    )
    return _Job(records, recipe, scheme, inputs, head, members)


def _warn_if_useless(head: CertifiedHead, sample: Sample) -> None:
    """Warn the owner of a head that is no better than the commonest class. NOT private."""
    found = scores(sample.features, head.weights.numpy(), sample.offsets)
    given, _ = head.scheme.certify(found, np.ones_like(found))
    warn_after_training(
        torch.from_numpy(given),
        sample.labels,
        head.class_names(range(head.classes)),
        network=False,
    )


def _warn_owner(sample: Sample, job: _Job) -> None:
    """Warn the owner of features or a batch size that make a poor head. NOT private."""
    norm, bias = float(np.median(sample.norms)), float(np.median(sample.features[:, -1]))
    if norm < 0.2 or bias < BIAS / 4:
        warn(
            f"NOT private: scaled by {job.recipe.scale:.3g}, the features have a median norm of "
            f"{norm:.2g}{'' if norm < 0.2 else ' after clipping a much larger one'}; heads learn "
            "best at about 1: bring every column to about -1..1 by a public rule "
            "(hf.Preprocessing.ranges, or a schema); if they are, set scale= in the recipe"
        )
    count = job.records.owners / (job.members * job.recipe.batches)
    unit = job.head.neighbours.unit
    if not 0.4 <= count / (job.recipe.batch_size or 1) <= 2.5:
        warn(
            f"NOT private: batch_size={job.recipe.batch_size}, but there are about {count:,.0f} "
            f"{unit}s per batch and member: certificates hold, but the settings are meant for "
            f"another number of {unit}s; choose a public number that is nearer"
        )
