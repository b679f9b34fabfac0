"""Arrays that users give: features and labels, checked and converted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from .errors import InvalidInput

NEGLIGIBLE = 2.0**-40
"""Features closer to 0 than this count as 0, in records and in queries."""


def as_features(x: Any, what: str = "x") -> Tensor:
    """Return a tensor, array, data frame or nested lists as a tensor with one row per record.

    Raises InvalidInput for anything else.
    """
    refuse_text_columns(x, what)
    try:
        # Lists become float64, so that no value depends on the types of the others.
        features = _as_tensor(x) if hasattr(x, "dtype") else _as_tensor(x).double()
    except Exception as error:
        raise InvalidInput(
            f"{what} is a {type(x).__name__}: expected a tensor or array of numbers ({error})"
        ) from error
    if features.is_complex() or features.layout != torch.strided or features.dim() < 2:
        raise InvalidInput(
            f"{what} is {features.dtype} {tuple(features.shape)}: expected dense real numbers, "
            "one row for each record or query"
        )
    return features


def refuse_text_columns(x: Any, what: str = "x") -> None:
    """Raise InvalidInput if a data frame has a column that does not hold numbers."""
    names, types = getattr(x, "columns", None), getattr(x, "dtypes", None)
    if names is None or types is None:
        return
    for name, kind in zip(names, types, strict=False):
        is_text_column = str(kind).lower().startswith(("object", "str", "cat", "enum"))
        word = (
            next((value for value in x[name] if isinstance(value, str)), None)
            if is_text_column
            else None
        )
        if word is not None:
            raise InvalidInput(
                f"{what}, column {name!r}: {word!r} is not a number; leave the column out, or say "
                "in a schema how it becomes numbers (hf.Preprocessing.schema)"
            )


def as_batch(queries: Any, dimensions: int) -> tuple[Any, bool]:
    """Return the queries as a batch, and whether they were a single record.

    A single record is a row of numbers, or a mapping from columns to cells.
    """
    if type(queries).__name__ == "LazyFrame":
        raise InvalidInput("queries is a LazyFrame: expected a data frame; call collect() on it")
    if isinstance(queries, np.ma.MaskedArray):
        raise InvalidInput("queries: masked arrays hide missing values; fill them by a public rule")
    if isinstance(queries, Mapping):
        single = {
            cell is None or isinstance(cell, str) or np.isscalar(cell) for cell in queries.values()
        }
        if len(single) > 1:
            raise InvalidInput(
                "queries: some columns hold one cell and others many; "
                "expected one record, or columns of equal length"
            )
        return (
            ({name: [cell] for name, cell in queries.items()}, True)
            if True in single
            else (queries, False)
        )
    if isinstance(queries, Tensor):
        return (queries[None], True) if queries.dim() == dimensions else (queries, False)
    if isinstance(queries, np.ndarray | list | tuple):
        try:
            return (
                (np.asarray(queries)[None], True)
                if np.ndim(queries) == dimensions
                else (queries, False)
            )
        except (ValueError, TypeError, RuntimeError):
            pass  # invalid queries are refused later, when features are read
    return queries, False


def check_features(x: Any, dtype: torch.dtype, what: str = "x") -> Float[Tensor, "records ..."]:
    """Return features in the model's dtype; raise on NaN, infinities and unsupported types.

    Numbers that are finite in float64 are never rejected for their size. Numbers closer to 0 than
    NEGLIGIBLE become 0: products with them could be denormal, and the time that those take would
    reveal something about the private weights.
    """
    given = as_features(x, what).cpu()
    if given.dtype == torch.bfloat16:
        given = given.float()  # numpy has no bfloat16
    if not np.isfinite(given.numpy()).all():  # numpy is several times faster for a single query
        finite = given.isfinite().flatten(1).all(1)
        first = (~given.isfinite()).nonzero()[0]
        place = f"row {int(first[0]) + 1}"
        place += f", column {int(first[1]) + 1}" if given.dim() == 2 else ""
        raise InvalidInput(
            f"{what} holds NaN or infinite values in {int((~finite).sum())} of {len(given)} rows "
            f"(first: {place}); fill or drop them by a public rule first"
        )
    # Numbers too large for the dtype overflow here, as they might in any layer.
    features = given.to(dtype).numpy()
    return torch.from_numpy(
        np.where(np.abs(features) < NEGLIGIBLE, features.dtype.type(0), features)
    )


def check_labels(y: Any, rows: int, classes: int, what: str = "y") -> Int64[Tensor, " {rows}"]:
    """Return labels as int64; raise on a wrong length or type, or labels outside 0..classes-1."""
    try:
        labels = _as_tensor(y).cpu()
    except Exception as error:
        raise InvalidInput(
            f"{what}: expected whole numbers 0..{classes - 1}; encode text labels first ({error})"
        ) from error
    if labels.is_floating_point() or labels.is_complex() or labels.layout != torch.strided:
        raise InvalidInput(
            f"{what} is {labels.dtype}: expected whole numbers 0..{classes - 1}; "
            "convert it to int64"
        )
    if labels.shape != (rows,):
        raise InvalidInput(
            f"{what} has shape {tuple(labels.shape)}: expected ({rows},), one label per record"
        )
    labels = labels.long()
    wrong = (labels < 0) | (labels >= classes)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise InvalidInput(
            f"{what}[{row}] = {int(labels[row])}: "
            f"expected a label from 0 to {classes - 1} (the model's classes)"
        )
    return labels


def _as_tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError("masked arrays hold missing values; fill them by a public rule")
    array = np.asarray(values)
    if array.dtype == object and all(type(value) in (int, float) for value in array.flat):
        array = array.astype(np.float64)  # whole numbers beyond 64 bits
    if array.dtype == object or array.dtype.kind in "USMm":
        raise TypeError(f"values of type {array.dtype}")
    return torch.from_numpy(
        np.array(array, order="C", copy=not array.flags.c_contiguous or not array.flags.writeable)
    )


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as text, such as "3, 28, 28"."""
    return ", ".join(map(str, shape))


Floats = NDArray[np.float64]


Integers = NDArray[np.int64]
