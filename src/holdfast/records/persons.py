"""Persons: who owns each record, for privacy per person.

A person has one batch, one member and one share of every step, whatever the other persons do; all
of it depends on the person's own records and on public numbers (docs/theory/persons.md).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..checks import check_integer
from ..errors import InvalidInput
from ..preprocessing.columns import MISSING_WORDS
from ..relations import Neighbours
from .ids import content_ids, hash_codes, id_codes

NO_OWNER = (*MISSING_WORDS, "None", "none", "<NA>")
"""Texts that do not name an owner: what spreadsheets and data frames write for nothing."""


@dataclass(frozen=True, eq=False)
class Persons:
    """The owners of the records that are used.

    Args:
        rows: The records that are used, by row; the others are surplus.
        codes: The owner of each of them, as bytes.
        counts: How many of them its owner has, for each of them.
    """

    rows: Tensor
    codes: list[bytes]
    counts: Tensor

    @classmethod
    def of(
        cls, persons: Any, most: int | None, features: Tensor, labels: Tensor, seed: int
    ) -> Persons:
        """Return the owners, with at most `most` records each.

        Surplus records are chosen by a hash of their content, keyed with the seed.

        Guarantees:
            Which records of a person are used depends on the records of that person alone, and not
            on their order.
        """
        return cls.of_codes(owner_codes(persons, len(labels)), most, features, labels, seed)

    @classmethod
    def of_codes(
        cls, owners: list[bytes], most: int | None, features: Tensor, labels: Tensor, seed: int
    ) -> Persons:
        """Return the owners, given as `owner_codes` returns them."""
        rows = list(range(len(owners)))
        if most is not None:
            rows = _without_surplus(owners, most, content_ids(features, labels), seed)
        codes = [owners[row] for row in rows]
        sizes = Counter(codes)
        counts = torch.tensor([sizes[code] for code in codes], dtype=torch.int64)
        return cls(torch.tensor(rows, dtype=torch.int64), codes, counts)


def owner_codes(persons: Any, rows: int) -> list[bytes]:
    """Return the owner of each record as bytes; raise InvalidInput if one is missing."""
    codes = id_codes("persons", persons, rows)
    for row, code in enumerate(codes):
        name = code.decode("utf-8", "surrogatepass").partition(":")[2]
        if name.strip() in NO_OWNER:
            raise InvalidInput(f"persons[{row}] = {name!r}: expected the owner of every record")
        if name != name.strip():
            raise InvalidInput(
                f"persons[{row}] = {name!r} begins or ends with a space, so that it would be "
                f"another person than {name.strip()!r}; remove the spaces"
            )
    if len({code[:4] for code in codes}) > 1:
        raise InvalidInput(
            "persons holds both numbers and strings, so that 7 and '7' would be two persons; "
            "convert all of them to strings"
        )
    return codes


def _without_surplus(owners: list[bytes], most: int, contents: list[bytes], seed: int) -> list[int]:
    """Return the rows of at most `most` records per owner: those with the smallest hashes."""
    hashes = hash_codes(contents, seed).tolist()
    by_owner: dict[bytes, list[int]] = defaultdict(list)
    for row, owner in enumerate(owners):
        by_owner[owner].append(row)
    return sorted(
        row
        for own in by_owner.values()
        for row in sorted(own, key=lambda row: (hashes[row], contents[row]))[:most]
    )


def relation_for(
    neighbours: Neighbours | str,
    ids: Iterable[Any] | None,
    persons: Iterable[Any] | None,
    max_records_per_person: int | None,
) -> Neighbours:
    """Return the relation, per person if `persons` is given; raise InvalidInput on contradictions.

    Args:
        neighbours: The relation that was asked for.
        ids: The ids of records, or None.
        persons: The owners of records, or None.
        max_records_per_person: The largest number of records that one person may have, or None.
    """
    relation = Neighbours.of(neighbours)
    if persons is None:
        if relation.unit == "person":
            raise InvalidInput(
                f"neighbours={relation.value!r} needs persons=, the owner of each record"
            )
        if max_records_per_person is not None:
            raise InvalidInput(
                f"max_records_per_person={max_records_per_person!r} needs persons=, the owner of "
                "each record"
            )
        return relation
    if ids is not None:
        raise InvalidInput(
            "both ids and persons were given: with persons, records are assigned by their owner; "
            "leave out ids"
        )
    if max_records_per_person is not None:
        check_integer("max_records_per_person", max_records_per_person, 1)
    return relation.per_person()
