"""Checks of what users give: numbers (numpy's too), names, and paths to write to."""

from __future__ import annotations

import math
import operator
import os
from numbers import Real
from pathlib import Path
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


def refuse_unwritable(path: Path) -> None:
    """Raise InvalidInput if a file cannot be written there, before any work is lost on it."""
    folder = path.absolute().parent
    if path.is_dir():
        raise InvalidInput(f"{path}: is a folder; give the name of a file")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InvalidInput(f"{path}: the folder {folder} does not exist or cannot be written to; create it first")
