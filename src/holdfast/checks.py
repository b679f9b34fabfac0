"""Numbers that users give: read once, here, numpy's too."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any

from .errors import InvalidInput


def whole(name: str, value: Any, least: int) -> int:
    """A whole number (numpy's too) from `least` to 2^63 - 1."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or not least <= number < 2**63:
        raise InvalidInput(f"{name}={value!r}: expected a whole number, at least {least}")
    return number


def real(value: Any) -> float:
    """A float; NaN for anything that is not a real number, or too large for a float."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


def printable_name(what: str, name: Any) -> str:
    """What people call something: a string of 1 to 200 printable characters."""
    if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
        raise InvalidInput(f"{what}={name!r}: expected a name of 1 to 200 printable characters")
    return name
