"""The neighbour relations: how one move may change the private records."""

from __future__ import annotations

import enum

from .errors import InvalidInput


class Neighbours(enum.Enum):
    """The relation that defines which data sets are one move apart.

    A certificate holds for exactly one relation. The bounds on the descent direction use two
    properties (docs/theory/descent.md). `adds_records`: each move may add an unknown gradient,
    anywhere in the clip range. `selects_removals`: each move may remove one of the present records from
    its batch, and the worst ones are selected. Under ADD_REMOVE a move does one or the other; the
    allowance for a newcomer also covers a departure, since a departing gradient is within the clip
    range too, so nothing needs to be selected.
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
