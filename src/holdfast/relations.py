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

    `adds_records` tells whether a move may bring in an unknown gradient, anywhere in the clip
    range. `selects_removals` tells whether the bounds select the worst records to remove. Under
    ADD_REMOVE a move does one or the other, and the allowance for an unknown gradient also covers a
    removal, since a removed gradient is within the clip range too; so nothing needs to be selected
    (docs/theory/descent.md).

    Example:
        >>> import holdfast as hf
        >>> hf.Neighbours("replace")
        <Neighbours.REPLACE: 'replace'>
    """

    ADD_REMOVE = "add_remove"
    REPLACE = "replace"
    REMOVE = "remove"

    @property
    def adds_records(self) -> bool:
        return self is not Neighbours.REMOVE

    @property
    def selects_removals(self) -> bool:
        return self is not Neighbours.ADD_REMOVE

    @classmethod
    def of(cls, value: Neighbours | str) -> Neighbours:
        """Return the relation with this name; a relation is returned as it is."""
        try:
            return cls(value)
        except ValueError:
            names = ", ".join(repr(member.value) for member in cls)
            raise InvalidInput(f"neighbours={value!r}: expected one of {names}") from None
