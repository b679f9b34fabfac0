"""Large tables with two classes: the card statements of AMEX by Kaggle's files, or any table that stands in for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from holdfast.errors import DamagedFile, InvalidInput
from holdfast.examples.blobs import Task, floats, labels
from holdfast.records.tables import find, read_archive

KAGGLE = "https://www.kaggle.com/competitions/amex-default-prediction/data"
_CATEGORIES = {"D_63": ("CO", "CR", "CL", "XZ", "XM", "XL"), "D_64": ("O", "R", "U", "-1")}
_NO_NUMBERS = ("customer_ID", "S_2")
_QUERIES = 2_000


def large_table(folder: Path | None, name: str = "brfss_diabetes") -> Task:
    """A table as arrays X, y in `tables/NAME.npz`, its classes in equal shares; features scaled by the mean and spread of a public tenth."""
    path = find(
        folder, [f"tables/{name}.npz"], f"Write it there with the arrays X (numbers) and y (0 or 1), or get AMEX by hand from {KAGGLE}."
    )
    arrays = read_archive(path, ["X", "y"])
    return _task(name, f"{path.name}, classes in equal shares, in place of AMEX", arrays["X"].astype(np.float64), arrays["y"].reshape(-1))


def amex(folder: Path | None) -> Task:
    """Kaggle's train_data.csv and train_labels.csv: each statement with its customer's default, yes or no."""
    import pyarrow as pa
    from pyarrow import csv

    how = f"Get them by hand from {KAGGLE}."
    statements = find(folder, ["amex/train_data.csv"], how)
    targets = _targets(find(folder, ["amex/train_labels.csv"], how))
    options = csv.ConvertOptions(strings_can_be_null=True, column_types=_types(statements))
    parts, found = [], []
    try:
        for batch in csv.open_csv(statements, convert_options=options):
            parts.append(_numbers(batch))
            found += [targets.get(customer) for customer in batch.column("customer_ID").to_pylist()]
    except pa.ArrowException as error:
        raise DamagedFile(f"{statements}: not a readable table ({error}); get it again") from error
    if None in found:
        raise InvalidInput(f"{statements}: statement {found.index(None) + 1} is of a customer that train_labels.csv does not name")
    return _task("amex", "AMEX default prediction, classes in equal shares", np.concatenate(parts), np.asarray(found))


def _targets(path: Path) -> dict[str, int]:
    """Each customer's answer."""
    import pyarrow as pa
    from pyarrow import csv

    try:
        table = csv.read_csv(path)
    except pa.ArrowException as error:
        raise DamagedFile(f"{path}: not a readable table ({error}); get it again") from error
    if not {"customer_ID", "target"} <= set(table.column_names):
        raise InvalidInput(f"{path}: expected the columns customer_ID and target, found {table.column_names}")
    return dict(zip(table["customer_ID"].to_pylist(), table["target"].to_pylist(), strict=True))


def _types(path: Path) -> dict[str, Any]:
    """Every column's type, so that none depends on the rows."""
    import pyarrow as pa

    with path.open(encoding="utf-8") as handle:
        names = handle.readline().strip().split(",")
    missing = sorted({*_NO_NUMBERS, *_CATEGORIES} - set(names))
    if missing:
        raise InvalidInput(f"{path}: has no column {missing[0]!r}; expected Kaggle's train_data.csv")
    return {name: pa.string() if name in _NO_NUMBERS or name in _CATEGORIES else pa.float64() for name in names}


def _numbers(batch: Any) -> NDArray[np.float64]:
    """Numbers as they are, and a column of 0 and 1 for each category; what is missing is left open."""
    columns = []
    for name in batch.schema.names:
        if name in _CATEGORIES:
            values = np.asarray(batch.column(name).to_pylist(), dtype=object)
            columns += [(values == category).astype(np.float64) for category in _CATEGORIES[name]]
        elif name not in _NO_NUMBERS:
            columns.append(batch.column(name).to_numpy(zero_copy_only=False))
    return np.stack(columns, 1)


def _scales(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and spread of the values that are known; of a column without any, 0 and 0."""
    known = ~np.isnan(x)
    count = np.maximum(known.sum(0), 1)
    middle = np.where(known, x, 0.0).sum(0) / count
    return middle, np.sqrt(np.where(known, (x - middle) ** 2, 0.0).sum(0) / count)


def _task(name: str, source: str, x: NDArray[np.float64], y: NDArray[Any]) -> Task:
    """As many rows of one class as of the other, by a fixed lot; a tenth of them is public, from which the scales are taken."""
    if len(x) != len(y) or len(np.unique(y)) < 2:
        raise DamagedFile(f"{name}: {len(x)} rows, {len(y)} labels, {len(np.unique(y))} classes; expected a label each, of two classes")
    if not set(np.unique(y)) <= {0, 1}:
        raise InvalidInput(f"{name}: labels {np.unique(y)[:5].tolist()}: expected 0 and 1")
    lot = np.random.default_rng(0)
    by_class = [lot.permutation(np.flatnonzero(y == label)) for label in (0, 1)]
    count = min(map(len, by_class))
    rows = lot.permutation(np.concatenate([part[:count] for part in by_class]))
    tenth, few = len(rows) // 10, min(_QUERIES, len(rows) // 20)
    public, tune, queries, private = np.split(rows, np.cumsum([tenth, few, few]))
    middle, spread = _scales(x[public])

    def scaled(chosen: NDArray[np.int64]) -> Tensor:
        return floats(np.nan_to_num((x[chosen] - middle) / np.where(spread > 0, spread, 1.0), nan=0.0).clip(-3, 3))

    return Task(
        name=name,
        source=source,
        x=scaled(private),
        y=labels(y[private]),
        query_x=scaled(queries),
        query_y=labels(y[queries]),
        public_x=scaled(public),
        tune_x=scaled(tune),
        tune_y=labels(y[tune]),
    )
