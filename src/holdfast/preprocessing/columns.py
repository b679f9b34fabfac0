"""Columns of a table, and the public rules that encode each: ranges, categories, missing values."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..arrays import check_labels
from ..errors import InvalidInput

MISSING_WORDS = ("", "NA", "N/A", "NaN", "nan", "NULL", "null")
"""Texts that mark a missing number in a column of numbers."""

FLAG = "flag"
"""The rule for missing values that marks them in an additional column."""

Values = NDArray[Any]
Encoded = NDArray[np.float64]


@dataclass(frozen=True)
class Number:
    """A column of numbers.

    With a range, numbers are clipped to it and scaled to -1..1, on a logarithmic scale if `log`.
    `missing` is the number that replaces a missing one, or "flag", which sets it to 0 after scaling
    and marks it in an additional column. Without `missing`, a missing value raises InvalidInput.
    """

    name: str
    low: float | None = None
    high: float | None = None
    log: bool = False
    missing: float | str | None = None

    def __post_init__(self) -> None:
        ends = (self.low, self.high)
        if (self.low is None) != (self.high is None) or any(
            end is not None and not _is_finite_number(end) for end in ends
        ):
            raise InvalidInput(
                f"column {self.name!r}: "
                f"range={list(ends)}: expected two finite numbers, the smaller first, or no range"
            )
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise InvalidInput(
                f"column {self.name!r}: range={list(ends)}: expected the smaller number first"
            )
        if (
            self.low is not None
            and self.high is not None
            and not math.isfinite(float(self.high) - float(self.low))
        ):
            raise InvalidInput(
                f"column {self.name!r}: range={list(ends)}: too wide for floats; narrow it"
            )
        if self.log and self.low is None:
            raise InvalidInput(f"column {self.name!r}: log=true needs a range; add range = [...]")
        if (
            self.missing is not None
            and self.missing != FLAG
            and not _is_finite_number(self.missing)
        ):
            raise InvalidInput(
                f"column {self.name!r}: missing={self.missing!r}: expected a number or {FLAG!r}"
            )

    @property
    def width(self) -> int:
        return 2 if self.missing == FLAG else 1

    @property
    def typical_square(self) -> float:
        """About the mean square of the encoded value, as far as the rule tells it."""
        return 1.0 if self.low is None else 0.5

    def encode(self, values: Values) -> Encoded:
        """Return one row of features per value."""
        numbers = self._numbers(values)
        absent = np.isnan(numbers)
        if absent.any() and self.missing is None:
            row = int(absent.argmax()) + 1
            raise InvalidInput(
                f"column {self.name!r}, row {row}: a value is missing. In a query, fill it in; "
                "for records, the owner writes a rule in the schema before training: "
                f'missing = <number>, or missing = "{FLAG}"'
            )
        if not isinstance(self.missing, str | None):
            numbers = np.where(absent, float(self.missing), numbers)
        if np.isinf(numbers).any():
            raise InvalidInput(
                f"column {self.name!r}, row {int(np.isinf(numbers).argmax()) + 1}: "
                "an infinite value; expected finite numbers"
            )
        scaled = self._scaled(numbers)
        if self.missing == FLAG:
            return np.stack([np.where(absent, 0.0, scaled), absent.astype(np.float64)], 1)
        return scaled[:, None]

    def _numbers(self, values: Values) -> Encoded:
        if values.dtype != object:
            return values.astype(np.float64)
        numbers = np.empty(len(values))
        for row, value in enumerate(values):
            try:
                numbers[row] = (
                    math.nan if _is_missing(value) or value in MISSING_WORDS else as_number(value)
                )
            except (TypeError, ValueError, OverflowError):
                raise InvalidInput(
                    f"column {self.name!r}, row {row + 1}: {value!r} is not a number; list the "
                    "categories in the schema if it is text"
                ) from None
        return numbers

    def _scaled(self, numbers: Encoded) -> Encoded:
        if self.low is None or self.high is None:
            return numbers
        shift = np.clip(numbers, self.low, self.high) - self.low
        span = self.high - self.low
        if self.log:  # one by one: vectorised loops may round the last few values differently
            shift, span = np.array([math.log1p(value) for value in shift]), math.log1p(span)
        place = shift / span
        return np.asarray(np.clip(2.0 * place - 1.0, -1.0, 1.0), dtype=np.float64)


@dataclass(frozen=True)
class Category:
    """A column of categories, encoded as one column of 0 and 1 per category.

    `other` adds a column for all values that are not listed; without it, such a value raises
    InvalidInput. `missing` is the category that replaces a missing value, or "flag", which adds a
    column for missing values; without it, a missing value raises InvalidInput.
    """

    name: str
    categories: tuple[str, ...]
    other: bool = False
    missing: str | None = None

    def __post_init__(self) -> None:
        if any(isinstance(value, list | dict) for value in (*self.categories, self.missing)):
            raise InvalidInput(
                f"column {self.name!r}: expected categories that are words or numbers"
            )
        object.__setattr__(
            self, "categories", tuple(category_name(value) for value in self.categories)
        )
        if not self.categories or len(set(self.categories)) != len(self.categories):
            raise InvalidInput(
                f"column {self.name!r}: "
                f"categories={list(self.categories)}: expected at least one, each once"
            )
        if self.missing is not None:
            object.__setattr__(self, "missing", category_name(self.missing))
        if self.missing not in (None, FLAG, *self.categories):
            raise InvalidInput(
                f"column {self.name!r}: "
                f"missing={self.missing!r}: expected one of its categories, or {FLAG!r}"
            )

    @property
    def typical_square(self) -> float:
        """The sum of squares of the encoded value: exactly one column is 1."""
        return 1.0

    @property
    def width(self) -> int:
        return len(self.categories) + self.other + (self.missing == FLAG)

    def encode(self, values: Values) -> Encoded:
        """Return one row of features per value."""
        known = {category: i for i, category in enumerate(self.categories)}
        known |= (
            {}
            if self.missing is None
            else {_MISSING_NAME: self.width - 1 if self.missing == FLAG else known[self.missing]}
        )
        for row, value in enumerate(values):
            if not isinstance(value, _SCALAR_TYPES) and not _is_missing(value):
                raise InvalidInput(
                    f"column {self.name!r}, row {row + 1}: {value!r} is not a word or a number; "
                    "convert it to one first"
                )
        places = [
            known.get(
                category_name(value),
                len(self.categories) if self.other and not _is_missing(value) else -1,
            )
            for value in values
        ]
        if -1 in places:
            self._refuse(places.index(-1), values)
        return np.asarray(np.eye(self.width, dtype=np.float64)[places])

    def _refuse(self, row: int, values: Values) -> None:
        if _is_missing(values[row]):
            raise InvalidInput(
                f"column {self.name!r}, row {row + 1}: a value is missing. In a query, fill it in; "
                "for records, the owner writes a rule in the schema before training: "
                f'missing = "<category>", or missing = "{FLAG}"'
            )
        raise InvalidInput(
            f"column {self.name!r}, row {row + 1}: {category_name(values[row])!r} is not one of "
            f"its categories {list(self.categories)}; list it in the schema, or write other = true"
        )


Column = Number | Category
_MISSING_NAME = "\0missing"
_DECIMAL = re.compile(r"(-?\d+)\.(\d+)")  # "3.0" and "3" are one category, as are "2.50" and "2.5"
_SCALAR_TYPES = (bool, int, float, np.number, np.bool_, Decimal, str)
_LARGEST = sys.float_info.max


def category_name(value: Any) -> str:
    """Return a category's name as text; equal numbers, such as 3 and 3.0, get the same name."""
    if _is_missing(value):
        return _MISSING_NAME
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    text = str(value)
    if text.casefold() in ("true", "false"):
        return text.casefold()
    decimal = _DECIMAL.fullmatch(text)
    if decimal is None:
        return text
    name = f"{decimal[1]}.{decimal[2].rstrip('0')}".removesuffix(".")
    return "0" if name == "-0" else name


def class_numbers(
    values: Any, rows: int, classes: int, names: Sequence[str] = (), what: str = "y"
) -> Tensor:
    """Return labels as numbers 0..classes-1.

    Args:
        values: The labels: numbers, or names if the classes have names.
        rows: How many there must be.
        classes: The number of classes.
        names: The names of the classes, in order.
        what: What to call the labels in errors.

    Raises:
        InvalidInput: If a label is not one of the classes, or there are more or fewer than records.
    """
    if not names:
        return check_labels(values, rows, classes, what)
    places = {category_name(name): number for number, name in enumerate(names)}
    given = values.tolist() if hasattr(values, "tolist") else list(values)
    found = [category_name(value) for value in given]
    wrong = next((row for row, name in enumerate(found) if name not in places), None)
    if wrong is not None:
        raise InvalidInput(
            f"{what}, row {wrong + 1}: {given[wrong]!r} is not one of the classes {list(names)}"
        )
    numbers = torch.tensor([places[name] for name in found], dtype=torch.int64)
    return check_labels(numbers, rows, classes, what)


def _is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return value == ""
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float | np.floating) and math.isnan(value))
    )


def as_number(value: Any) -> float:
    """Return a cell of a column of numbers; raise ValueError or TypeError if it is none."""
    if not isinstance(value, _SCALAR_TYPES) or (isinstance(value, str) and "_" in value):
        raise ValueError
    return float(value)


def _is_finite_number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -_LARGEST <= value <= _LARGEST
    )


def parse_column(name: str, about: Mapping[str, Any]) -> Column:
    """Return the column that an entry of a schema file describes."""
    given = dict(about)
    allowed = (
        {"categories", "other", "missing"} if "categories" in given else {"range", "log", "missing"}
    )
    unknown = sorted(set(given) - allowed)
    if unknown:
        raise InvalidInput(
            f"column {name!r}: {unknown[0]!r} is not understood here; "
            f"expected {', '.join(sorted(allowed))}"
        )
    for switch in ("other", "log"):
        if not isinstance(given.get(switch, False), bool):
            raise InvalidInput(
                f"column {name!r}: "
                f"{switch}={given[switch]!r}: expected true or false, without quotes"
            )
    if "categories" in given:
        if not isinstance(given["categories"], list):
            raise InvalidInput(
                f"column {name!r}: categories={given['categories']!r}: expected a list"
            )
        return Category(
            name, tuple(given["categories"]), bool(given.get("other", False)), given.get("missing")
        )
    ends = given.get("range", [None, None])
    if not isinstance(ends, list) or len(ends) != 2:
        raise InvalidInput(f"column {name!r}: range={ends!r}: expected [smallest, largest]")
    return Number(name, ends[0], ends[1], bool(given.get("log", False)), given.get("missing"))


def as_header(column: Column) -> dict[str, Any]:
    """Return a column as it is saved in the header of a file."""
    return {"kind": "category" if isinstance(column, Category) else "number", **asdict(column)}


def from_header(about: Mapping[str, Any]) -> Column:
    """Return the column that `as_header` saved."""
    fields = {key: value for key, value in about.items() if key != "kind"}
    return (
        Category(**{**fields, "categories": tuple(fields["categories"])})
        if about["kind"] == "category"
        else Number(**fields)
    )
