"""The arguments of `train_linear`: checked and completed before any work starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..arrays import Floats, check_labels
from ..checks import check_integer
from ..errors import InvalidInput
from ..heads import LinearRecipe
from ..heads.ball import FARTHEST
from ..preprocessing import Preprocessing
from ..records import Persons, content_ids, given_ids, owner_codes
from ..relations import Neighbours


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
