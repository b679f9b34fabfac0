"""Preprocessing: public rules that turn tables or raw features into what a model sees.

The rules are frozen, saved with the model, and applied to records and queries alike. Nothing in
them is fitted on private data: ranges and categories are given, and whitening uses the statistics
of public rows.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..arrays import as_features, check_features
from ..errors import InvalidInput, warn
from ..kernels import ordered_matmul
from ..workers import workers
from .columns import (
    Category,
    Column,
    Number,
    Values,
    as_header,
    category_name,
    class_numbers,
    from_header,
    parse_column,
)

MAX_SHARED_FRACTION = 0.05
"""The largest share of private rows that may be among the rows that whitening was fitted on."""

_FEW_ROWS = 20
"""Up to so many shared rows, there is only a warning: one record must not decide alone."""


@dataclass(frozen=True, eq=False)
class Whitening:
    """The map x -> clamp((x - mean) @ matrix, -limit, limit), in float64.

    `rows` are hashes of the public rows that it was fitted on, and `norm` is the root mean square
    norm of those rows after whitening; None if the file that it was read from does not tell it.
    """

    mean: Tensor
    matrix: Tensor
    limit: float
    rows: Tensor
    norm: float | None = None

    @classmethod
    def fit(cls, public: Any, shrinkage: float, limit: float) -> Whitening:
        """Fit the inverse square root of the public covariance.

        `shrinkage` times the mean eigenvalue is added to each eigenvalue first.
        """
        for name, value in (("shrinkage", shrinkage), ("limit", limit)):
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 < value < float("inf")
            ):
                raise InvalidInput(f"{name}={value!r}: expected a positive number")
        features = check_features(public, torch.float64, "public x")
        if features.dim() != 2 or len(features) < 2:
            raise InvalidInput(
                f"public x has shape {tuple(features.shape)}: "
                "whitening needs at least two rows of numbers"
            )
        mean = features.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov(features.T).reshape(features.shape[1], -1))
        values = values.clamp(min=0) + shrinkage * values.clamp(min=0).mean()
        if not bool((values > 0).all()):
            raise InvalidInput("public x is constant: whitening needs public rows that differ")
        rows = torch.from_numpy(np.unique(row_hashes(features).numpy()))
        fitted = cls(mean, vectors @ torch.diag(values.rsqrt()) @ vectors.T, float(limit), rows)
        norm = float(fitted.apply(features).square().sum(1).mean().sqrt())
        return replace(fitted, norm=norm)

    def apply(self, features: Tensor) -> Tensor:
        """Whiten each row by itself: the result does not depend on the other rows."""
        if features.dim() != 2 or features.shape[1] != len(self.mean):
            raise InvalidInput(
                f"x has shape {tuple(features.shape)}: "
                f"whitening was fitted on {len(self.mean)} columns"
            )
        with workers() as pool:
            return pool.submit(self._whiten, features).result()

    def _whiten(self, features: Tensor) -> Tensor:
        """Whiten rows, clamped to a public bound below which no sum of products can overflow."""
        largest = max(1.0, float(self.matrix.abs().max()))
        bound = torch.finfo(torch.float64).max / (4.0 * len(self.mean) * largest)
        centred = (features - self.mean).clamp(-bound, bound)
        return ordered_matmul(centred, self.matrix).clamp(-self.limit, self.limit)

    def count_fitted_rows(self, features: Tensor) -> int:
        """Return how many rows are among those that whitening was fitted on."""
        return int(np.isin(row_hashes(features).numpy(), self.rows.numpy()).sum())

    def refuse_fitted_rows(self, shared: int, count: int) -> None:
        """Raise if more than MAX_SHARED_FRACTION of all private rows are among the fitted rows.

        If these are fewer than 20 rows, warn instead.
        """
        share = shared / count if count else 0.0
        if share <= MAX_SHARED_FRACTION:
            return
        text = (
            f"{share:.1%} of the private rows are among the rows that whitening was fitted on "
            f"(at most {MAX_SHARED_FRACTION:.0%}): statistics of the private table are not "
            "public; fit whitening on other data. In a table with few values rows may also be "
            "equal by chance: then use ranges alone"
        )
        if shared >= _FEW_ROWS:
            raise InvalidInput(text)
        warn(f"NOT private: {text}")


def row_hashes(features: Tensor) -> Tensor:
    """Return a hash of each row's float32 values, so that copies in other dtypes are recognised."""
    rows = (features.float() + 0.0).numpy()
    hashes = [
        int.from_bytes(
            hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little", signed=True
        )
        for row in rows
    ]
    return torch.tensor(hashes, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """Public rules: first the columns of a table, if any, then whitening, if any.

    Make it with `ranges`, `schema` or `whitening`; it is saved with the model and applied to
    records and queries alike.

    Args:
        columns: The rules of a table's columns.
        whitener: The whitening, fitted on public rows.
        classes: The names of the classes, in the order of the labels.

    Example:
        >>> import holdfast as hf
        >>> rules = hf.Preprocessing.ranges({"age": (0, 100), "dose": (0, 10)})
        >>> rules.apply([[50.0, 20.0]])
        tensor([[0., 1.]], dtype=torch.float64)
    """

    columns: tuple[Column, ...] = ()
    whitener: Whitening | None = None
    classes: tuple[str, ...] = ()

    @classmethod
    def ranges(cls, ranges: Mapping[str, tuple[float, float]]) -> Preprocessing:
        """Clip each column to its range and scale it to -1..1.

        Args:
            ranges: The smallest and the largest value per column, known without looking at the
                records. Columns of a table are matched by name, those of an array by their order
                here.

        Raises:
            InvalidInput: If a range is empty or not finite.
        """
        if not isinstance(ranges, Mapping) or not ranges:
            raise InvalidInput('ranges: expected {"column": (smallest, largest), ...}')
        return cls(
            tuple(parse_column(name, {"range": list(ends)}) for name, ends in ranges.items())
        )

    @classmethod
    def whitening(
        cls, public_x: Any, *, shrinkage: float = 0.3, limit: float = 3.0
    ) -> Preprocessing:
        """Centre and whiten with the statistics of public data, then clip to -limit..limit.

        Args:
            public_x: Public rows, none of which may be a private record.
            shrinkage: A positive number; this times the mean eigenvalue of the covariance is added
                to each eigenvalue.
            limit: Whitened features are clipped to -limit..limit.

        Raises:
            InvalidInput: If there are too few rows, or a number is out of range.
        """
        return cls().whitened(public_x, shrinkage=shrinkage, limit=limit)

    @classmethod
    def schema(cls, path: str | PathLike[str]) -> Preprocessing:
        """Read ranges, categories, missing-value rules and classes from a TOML file.

        Args:
            path: The file; docs/guide.md shows one.

        Raises:
            InvalidInput: If the file cannot be read, or an entry is not understood.
        """
        try:
            about = tomllib.loads(Path(path).read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidInput(f"{path}: not a readable schema ({error})") from error
        unknown = sorted(set(about) - {"classes", "columns"})
        if unknown:
            raise InvalidInput(
                f"{path}: {unknown[0]!r} is not understood; "
                "expected classes = [...] and [columns.NAME] entries"
            )
        columns = about.get("columns", {})
        if (
            not isinstance(columns, dict)
            or not columns
            or not all(isinstance(entry, dict) for entry in columns.values())
        ):
            raise InvalidInput(f"{path}: expected one [columns.NAME] entry for every feature")
        classes = about.get("classes", [])
        names = [category_name(name) for name in classes] if isinstance(classes, list) else [""]
        if "" in classes or len(set(names)) != len(names) or len(names) == 1:
            raise InvalidInput(
                f"{path}: classes={classes!r}: expected the list of all labels, each once"
            )
        return cls(
            tuple(parse_column(name, entry) for name, entry in columns.items()), None, tuple(names)
        )

    def whitened(
        self, public_x: Any, *, shrinkage: float = 0.3, limit: float = 3.0
    ) -> Preprocessing:
        """Return these rules, followed by whitening that is fitted on public data.

        Args:
            public_x: Public rows; a table if these rules have columns.
            shrinkage: As for `whitening`.
            limit: As for `whitening`.

        Raises:
            InvalidInput: If the rules are whitened already, or as for `whitening`.
        """
        if self.whitener is not None:
            raise InvalidInput("this preprocessing is whitened already; call `whitened` only once")
        return replace(
            self, whitener=Whitening.fit(self._encoded(public_x, "public x"), shrinkage, limit)
        )

    @property
    def width(self) -> int | None:
        """The number of resulting features, or None if it is not known in advance."""
        if self.whitener is not None:
            return len(self.whitener.mean)
        return sum(column.width for column in self.columns) if self.columns else None

    @property
    def typical_norm(self) -> float | None:
        """About the root mean square norm of a row of features; None if the rules do not tell it.

        It is computed from the columns' rules, or from the public rows that whitening was fitted
        on.
        """
        if self.whitener is not None:
            return self.whitener.norm
        squares = sum(column.typical_square for column in self.columns)
        return math.sqrt(squares) if self.columns else None

    def apply(self, x: Any, what: str = "x") -> Tensor:
        """Return the float64 features of records or queries; no row depends on another.

        Args:
            x: A table if these rules have columns, else an array of features.
            what: What to call it in errors.

        Raises:
            InvalidInput: If a column is missing, or a value is not understood.
        """
        encoded = self._encoded(x, what)
        return encoded if self.whitener is None else self.whitener.apply(encoded)

    def apply_part(self, x: Any, what: str) -> tuple[Tensor, int]:
        """Apply the rules to some of the private records.

        Returns:
            The features, and how many of these records are among the rows of the whitening; the
            caller adds these numbers up, and passes the sum to `refuse_fitted_rows`.
        """
        encoded = self._encoded(x, what)
        if self.whitener is None:
            return encoded, 0
        return self.whitener.apply(encoded), self.whitener.count_fitted_rows(encoded)

    def refuse_fitted_rows(self, shared: int, count: int) -> None:
        """Raise InvalidInput if the whitening was fitted on private records."""
        if self.whitener is not None:
            self.whitener.refuse_fitted_rows(shared, count)

    def labels(self, values: Sequence[Any], what: str = "y") -> Tensor:
        """Return the labels 0, 1, ... that belong to names of classes."""
        return class_numbers(values, len(values), len(self.classes), self.classes, what)

    def _encoded(self, x: Any, what: str) -> Tensor:
        if not self.columns:
            return as_features(x, what).to("cpu", torch.float64)
        values = _values(x, self.columns, what)
        return torch.from_numpy(
            np.concatenate([column.encode(values[column.name]) for column in self.columns], 1)
        )

    def save_to(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Return the header for a saved file, and add the numbers to `tensors`."""
        if self.whitener is not None:
            tensors |= {
                f"preprocessing/{name}": getattr(self.whitener, name)
                for name in ("mean", "matrix", "rows")
            }
        header = {
            "columns": [as_header(column) for column in self.columns],
            "classes": self.classes,
            "limit": None if self.whitener is None else self.whitener.limit,
        }
        if self.whitener is not None and self.whitener.norm is not None:
            header["norm"] = self.whitener.norm
        return header

    @classmethod
    def load_from(cls, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Preprocessing:
        """Return the preprocessing that `save_to` saved."""
        whitener = None
        if header["limit"] is not None:
            mean, matrix, rows = (
                tensors[f"preprocessing/{name}"] for name in ("mean", "matrix", "rows")
            )
            whitener = Whitening(mean, matrix, header["limit"], rows, header.get("norm"))
        return cls(
            tuple(from_header(about) for about in header["columns"]),
            whitener,
            tuple(header["classes"]),
        )


def _values(x: Any, columns: tuple[Column, ...], what: str) -> dict[str, Values]:
    """Return the columns of a pyarrow table, data frame or mapping by name.

    If all columns are numbers, an array with the columns in order is accepted too.
    """
    names = getattr(
        x, "column_names", getattr(x, "columns", x.keys() if isinstance(x, Mapping) else None)
    )
    if names is None:
        array = as_features(x, what)
        if (
            array.dim() != 2
            or array.shape[1] != len(columns)
            or not all(isinstance(column, Number) for column in columns)
        ):
            raise InvalidInput(
                f"{what} has shape {tuple(array.shape)}: "
                f"expected a table with the columns {[c.name for c in columns]}"
            )
        return {column.name: array[:, i].double().numpy() for i, column in enumerate(columns)}
    for column in columns:
        if (times := list(names).count(column.name)) != 1:
            raise InvalidInput(
                f"{what} has {f'{times} columns named' if times else 'no column'} "
                f"{column.name!r}: "
                f"expected the columns of the schema, each once; found {list(names)}"
            )
    values = {
        column.name: _array(x[column.name], f"{what}, column {column.name!r}") for column in columns
    }
    if len({len(value) for value in values.values()}) > 1:
        raise InvalidInput(f"{what}: its columns have different lengths")
    return values


def _array(values: Any, what: str) -> Values:
    """Return a column's cells as an array.

    Numbers of one type stay an array of that type; everything else is kept cell by cell, so that no
    value depends on the types of the others.
    """
    kind = str(getattr(values, "type", ""))  # set only for a column of pyarrow
    if kind and hasattr(values, "to_pylist"):
        values = (
            values.to_numpy() if kind in ("float", "double", "halffloat") else values.to_pylist()
        )
    if isinstance(values, np.ma.MaskedArray):
        raise InvalidInput(f"{what}: masked arrays hide missing values; fill them by a public rule")
    if hasattr(values, "dtype"):
        array: Values = np.asarray(values)
        if array.dtype.kind in "fiub":
            return array
        if array.dtype.kind in "Mm":
            raise InvalidInput(
                f"{what}: holds dates or durations; convert them to numbers or words first"
            )
    cells = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        cells[row] = value
    return cells


def preprocessing_facts(rules: Preprocessing | None) -> list[str]:
    """Return, for privacy statements, the public rules in words."""
    lines = []
    if rules is not None and rules.classes:
        lines.append(f"the set of labels: {', '.join(rules.classes)}")
    for column in () if rules is None else rules.columns:
        if isinstance(column, Category):
            lines.append(f"column {column.name!r}: categories {', '.join(column.categories)}")
        else:
            ends = "no range" if column.low is None else f"range {column.low:g} to {column.high:g}"
            lines.append(f"column {column.name!r}: {ends}")
    if rules is not None and rules.whitener is not None:
        lines.append(f"whitening, fitted on {len(rules.whitener.rows)} different public rows")
    return lines or ["no preprocessing: features were used as given"]
