"""Checks of user input: numbers (including NumPy's), names, and output paths."""

from __future__ import annotations

import math
import operator
import os
import re
import unicodedata
from numbers import Real
from pathlib import Path
from typing import Any

from .errors import InvalidInput


def check_integer(name: str, value: Any, least: int) -> int:
    """Return `value` as an int; raise InvalidInput unless it is a whole number >= `least`.

    NumPy's integers are accepted; numbers from 2^63 on are refused.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or not least <= number < 2**63:
        raise InvalidInput(f"{name}={value!r}: expected a whole number, at least {least}")
    return number


def as_float_or_nan(value: Any) -> float:
    """Return `value` as a float; NaN if it is not a real number or too large for a float."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


def check_name(what: str, name: Any) -> str:
    """Return `name`; raise InvalidInput unless it is a string of 1 to 200 printable characters."""
    if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
        raise InvalidInput(f"{what}={name!r}: expected a name of 1 to 200 printable characters")
    return name


def check_new_name(what: str, name: Any) -> str:
    """Return a new name in Unicode's normal form C; raise InvalidInput if it is not valid.

    Two spellings that look the same (a letter with an accent, or a letter and an accent) become one
    name. Blanks at the ends are refused, because nobody sees them.
    """
    if check_name(what, name) != name.strip():
        raise InvalidInput(f"{what}={name!r}: expected a name without blanks at its ends")
    return unicodedata.normalize("NFC", name)


def canonical_name(name: str) -> str:
    """Return what all spellings of a name have in common: normal form C without outer blanks."""
    return unicodedata.normalize("NFC", name).strip()


def escape_markdown(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line, without markup, links or HTML."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    markup = r"[\\`*\[\]<>|~&@]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\."
    return re.sub(markup, lambda found: f"\\{found[0]}", line, flags=re.IGNORECASE)


def make_folder(path: Path) -> Path:
    """Make a folder for results and return it; raise InvalidInput if it cannot be written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be made a folder ({error.strerror}); name another folder with --out"
        ) from error
    refuse_unwritable(path / "result")
    return path


def refuse_unwritable(path: Path) -> None:
    """Raise InvalidInput if no file can be written at `path`, before any work is lost."""
    folder = path.absolute().parent
    if path.is_dir():
        raise InvalidInput(f"{path}: is a folder; give the name of a file")
    if not folder.is_dir():
        raise InvalidInput(f"{path}: the folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise InvalidInput(
            f"{path}: cannot be written; use another file or folder, or change its permissions"
        )
