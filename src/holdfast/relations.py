"""The neighbour relations: what one move on the private records may do."""

from __future__ import annotations

import enum

from .errors import InvalidInput


class Neighbours(enum.Enum):
    """Which data sets are one move apart. A certificate speaks about exactly one relation.

    The two attributes are what the descent-direction bounds need to know (docs/theory/descent.md):
    `newcomers`: each move may bring in an unknown gradient, anywhere in the clip range;
    `departures`: each move may take one of the present records out of its batch, and the worst ones are selected.
    Under ADD_REMOVE a move does one or the other; the newcomer's allowance covers a departure too,
    since a departing gradient is also within the clip range, so nothing needs to be selected.
    """

    ADD_REMOVE = "add_remove"
    REPLACE = "replace"
    REMOVE = "remove"

    @property
    def newcomers(self) -> bool:
        return self is not Neighbours.REMOVE

    @property
    def departures(self) -> bool:
        return self is not Neighbours.ADD_REMOVE

    @classmethod
    def of(cls, value: Neighbours | str) -> Neighbours:
        """Read a relation from its name."""
        try:
            return cls(value)
        except ValueError:
            names = ", ".join(repr(member.value) for member in cls)
            raise InvalidInput(f"neighbours={value!r}: expected one of {names}") from None
