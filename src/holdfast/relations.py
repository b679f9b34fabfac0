"""The neighbour relations: how one move may change the private records."""

from __future__ import annotations

import enum

from .errors import InvalidInput


class Neighbours(enum.Enum):
    """Which data sets are one move apart. A certificate holds for exactly one relation.

    Attributes:
        ADD_REMOVE: One record is added or removed.
        REPLACE: One record is exchanged for any other; the number of records is public.
        REMOVE: One record is removed; for unlearning, not enough for differential privacy.
        ADD_REMOVE_PERSON: One person is added or removed, with all of their records.
        REPLACE_PERSON: One person is exchanged for any other, with all of their records; the number
            of persons is public.

    `unit` is what one move changes and what is protected: "record" or "person".

    Example:
        >>> import holdfast as hf
        >>> hf.Neighbours("replace")
        <Neighbours.REPLACE: 'replace'>
        >>> hf.Neighbours("add_remove_person").unit
        'person'
    """

    ADD_REMOVE = "add_remove"
    REPLACE = "replace"
    REMOVE = "remove"
    ADD_REMOVE_PERSON = "add_remove_person"
    REPLACE_PERSON = "replace_person"

    @property
    def unit(self) -> str:
        return "person" if self in _PER_PERSON.values() else "record"

    @property
    def exchanges(self) -> bool:
        """Whether a move exchanges one unit for another, so that their number is public."""
        return self in (Neighbours.REPLACE, Neighbours.REPLACE_PERSON)

    @property
    def adds_records(self) -> bool:
        """Whether a move may bring in an unknown gradient, anywhere in the clip range."""
        return self is not Neighbours.REMOVE

    @property
    def selects_removals(self) -> bool:
        """Whether the bounds select the worst records to remove.

        If a unit is either added or removed, the allowance for an unknown gradient also covers a
        removal, since a removed gradient is within the clip range too; so nothing needs to be
        selected (docs/theory/descent.md).
        """
        return self.exchanges or self is Neighbours.REMOVE

    @property
    def move(self) -> str:
        """What one move is, in words."""
        return _MOVES[self]

    @classmethod
    def of(cls, value: Neighbours | str) -> Neighbours:
        """Return the relation with this name; a relation is returned as it is."""
        try:
            return cls(value)
        except ValueError:
            names = ", ".join(repr(member.value) for member in cls)
            raise InvalidInput(f"neighbours={value!r}: expected one of {names}") from None

    def per_person(self) -> Neighbours:
        """Return the relation whose moves are whole persons."""
        if self is Neighbours.REMOVE:
            raise InvalidInput(
                "neighbours='remove' with persons is not available: use 'add_remove', whose "
                "certificates hold for removals too"
            )
        return _PER_PERSON.get(self, self)


_PER_PERSON = {
    Neighbours.ADD_REMOVE: Neighbours.ADD_REMOVE_PERSON,
    Neighbours.REPLACE: Neighbours.REPLACE_PERSON,
}
_MOVES = {
    Neighbours.ADD_REMOVE: "one record added or removed",
    Neighbours.REPLACE: "one record exchanged for any other; the number of records is public",
    Neighbours.REMOVE: "one record removed (unlearning only: no private answer can be given)",
    Neighbours.ADD_REMOVE_PERSON: "one person added or removed, with all of their records",
    Neighbours.REPLACE_PERSON: (
        "one person exchanged for any other, with all of their records; the number of persons is "
        "public"
    ),
}
