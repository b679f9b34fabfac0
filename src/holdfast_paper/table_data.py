"""The data sets of tables: credit, health, and large ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from holdfast.errors import DamagedFile, InvalidInput
from holdfast.examples.demo import Task, floats, labels
from holdfast.examples.tables import find_file, read_archive
from holdfast.preprocessing import Preprocessing
from holdfast.preprocessing.columns import Category, Column, Number
from holdfast.records import assign_parts, given_ids

KAGGLE = "https://www.kaggle.com/competitions/amex-default-prediction/data"
_CATEGORIES = {"D_63": ("CO", "CR", "CL", "XZ", "XM", "XL"), "D_64": ("O", "R", "U", "-1")}
_NOT_NUMERIC = ("customer_ID", "S_2")
_QUERIES = 2_000


def large_table(folder: Path | None, name: str = "brfss_diabetes") -> Task:
    """Return the task of a table, stored as arrays X and y in `tables/NAME.npz`.

    Both classes get equal shares. Features are scaled by the mean and standard deviation of a
    public tenth of the rows.
    """
    path = find_file(
        folder,
        [f"tables/{name}.npz"],
        "Write it there with the arrays X "
        f"(numbers) and y (0 or 1), or download AMEX by hand from {KAGGLE}.",
    )
    arrays = read_archive(path, ["X", "y"])
    return _task(
        name,
        f"{path.name}, classes in equal shares, in place of AMEX",
        arrays["X"].astype(np.float64),
        arrays["y"].reshape(-1),
    )


def amex(folder: Path | None) -> Task:
    """Return the task of Kaggle's train_data.csv and train_labels.csv.

    Each statement is a record, labelled by whether its customer defaulted.
    """
    import pyarrow as pa
    from pyarrow import csv

    how = f"Download them by hand from {KAGGLE}."
    statements = find_file(folder, ["amex/train_data.csv"], how)
    targets = _targets(find_file(folder, ["amex/train_labels.csv"], how))
    options = csv.ConvertOptions(strings_can_be_null=True, column_types=_types(statements))
    parts, found = [], []
    try:
        for batch in csv.open_csv(statements, convert_options=options):
            parts.append(_numbers(batch))
            found += [targets.get(customer) for customer in batch.column("customer_ID").to_pylist()]
    except pa.ArrowException as error:
        raise DamagedFile(
            f"{statements}: not a readable table ({error}); download it again"
        ) from error
    if None in found:
        raise InvalidInput(
            f"{statements}: statement {found.index(None) + 1} is of a customer that is not in "
            "train_labels.csv; download both files again"
        )
    return _task(
        "amex",
        "AMEX default prediction, classes in equal shares",
        np.concatenate(parts),
        np.asarray(found),
    )


def _targets(path: Path) -> dict[str, int]:
    """Return the label of each customer."""
    import pyarrow as pa
    from pyarrow import csv

    try:
        table = csv.read_csv(path)
    except pa.ArrowException as error:
        raise DamagedFile(f"{path}: not a readable table ({error}); download it again") from error
    if not {"customer_ID", "target"} <= set(table.column_names):
        raise InvalidInput(
            f"{path}: expected the columns customer_ID and target, found {table.column_names}"
        )
    return dict(zip(table["customer_ID"].to_pylist(), table["target"].to_pylist(), strict=True))


def _types(path: Path) -> dict[str, Any]:
    """Return every column's type, so that none is inferred from the rows."""
    import pyarrow as pa

    with path.open(encoding="utf-8") as handle:
        names = handle.readline().strip().split(",")
    missing = sorted({*_NOT_NUMERIC, *_CATEGORIES} - set(names))
    if missing:
        raise InvalidInput(
            f"{path}: has no column {missing[0]!r}; expected Kaggle's train_data.csv"
        )
    return {
        name: pa.string() if name in _NOT_NUMERIC or name in _CATEGORIES else pa.float64()
        for name in names
    }


def _numbers(batch: Any) -> NDArray[np.float64]:
    """Return numbers as they are, and one column of 0 and 1 per category.

    Missing numbers are NaN.
    """
    columns = []
    for name in batch.schema.names:
        if name in _CATEGORIES:
            values = np.asarray(batch.column(name).to_pylist(), dtype=object)
            columns += [(values == category).astype(np.float64) for category in _CATEGORIES[name]]
        elif name not in _NOT_NUMERIC:
            columns.append(batch.column(name).to_numpy(zero_copy_only=False))
    return np.stack(columns, 1)


def _scales(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of each column's known values (0 and 0 if it has none)."""
    known = ~np.isnan(x)
    count = np.maximum(known.sum(0), 1)
    middle = np.where(known, x, 0.0).sum(0) / count
    return middle, np.sqrt(np.where(known, (x - middle) ** 2, 0.0).sum(0) / count)


def _task(name: str, source: str, x: NDArray[np.float64], y: NDArray[Any]) -> Task:
    """Return a task with as many rows of one class as of the other, by a fixed permutation.

    A tenth of the rows is public; features are scaled by its statistics.
    """
    if len(x) != len(y) or len(np.unique(y)) < 2:
        raise DamagedFile(
            f"{name}: {len(x)} rows, {len(y)} labels, {len(np.unique(y))} classes; "
            "expected one label per row, and two classes"
        )
    if not set(np.unique(y)) <= {0, 1}:
        raise InvalidInput(f"{name}: labels {np.unique(y)[:5].tolist()}: expected 0 and 1")
    generator = np.random.default_rng(0)
    by_class = [generator.permutation(np.flatnonzero(y == label)) for label in (0, 1)]
    count = min(map(len, by_class))
    rows = generator.permutation(np.concatenate([part[:count] for part in by_class]))
    tenth, few = len(rows) // 10, min(_QUERIES, len(rows) // 20)
    public, tune, queries, private = np.split(rows, np.cumsum([tenth, few, few]))
    middle, std = _scales(x[public])

    def scaled(chosen: NDArray[np.int64]) -> Tensor:
        return floats(
            np.nan_to_num((x[chosen] - middle) / np.where(std > 0, std, 1.0), nan=0.0).clip(-3, 3)
        )

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


_QUERY_PARTS = 5  # one row in so many is a query
_MOST_QUERIES = 20_000


@dataclass(frozen=True, eq=False)
class TableTask:
    """A table with public rules; `records` is about how many private rows it has."""

    name: str
    records: int
    classes: int
    rules: Preprocessing
    x: dict[str, Any]
    y: NDArray[np.int64]
    query_x: dict[str, Any]
    query_y: NDArray[np.int64]

    @property
    def features(self) -> int:
        """The number of features after encoding."""
        assert self.rules.width is not None
        return self.rules.width


def _flags(*names: str) -> list[Column]:
    return [Number(name, 0, 1) for name in names]


def _money(*names: str) -> list[Column]:
    return [Number(name, 0, 500_000, log=True) for name in names]


# Ranges follow the questionnaires and codebooks; `keep` is the public share of the commoner class
# that is kept: one in so many.
_HEART: list[Column] = [
    Number("BMI", 10, 60), *_flags("Smoking", "AlcoholDrinking", "Stroke"),
    Number("PhysicalHealth", 0, 30), Number("MentalHealth", 0, 30), *_flags("DiffWalking"),
    Number("AgeCategory", 0, 12), *_flags("PhysicalActivity"), Number("GenHealth", 0, 4),
    Number("SleepTime", 0, 24), *_flags("Asthma", "KidneyDisease", "SkinCancer"),
    *_flags(*(f"column {number}" for number in range(14, 26))),
]  # fmt: skip
_CREDIT: list[Column] = [
    Number("LIMIT_BAL", 10_000, 1_000_000, log=True), Category("SEX", ("1", "2")),
    Category("EDUCATION", tuple(str(number) for number in range(7))),
    Category("MARRIAGE", tuple(str(number) for number in range(4))), Number("AGE", 18, 80),
    *(Number(f"PAY_{month}", -2, 8) for month in range(6)),
    *_money(*(f"BILL_AMT{month}" for month in range(6))),
    *_money(*(f"PAY_AMT{month}" for month in range(6))),
]  # fmt: skip
_GMSC: list[Column] = [
    Number("RevolvingUtilization", 0, 2), Number("age", 18, 100),
    Number("Times30-59DaysPastDue", 0, 10, log=True), Number("DebtRatio", 0, 10, log=True),
    Number("MonthlyIncome", 0, 50_000, log=True, missing="flag"), Number("OpenCreditLines", 0, 30),
    Number("Times90DaysLate", 0, 10, log=True), Number("RealEstateLoans", 0, 10),
    Number("Times60-89DaysPastDue", 0, 10, log=True), Number("Dependents", 0, 10, missing="flag"),
]  # fmt: skip
_TABLES = {
    "brfss_heart2020": (_HEART, 44_000, 11),
    "uci_credit_default": (_CREDIT, 24_000, 1),
    "gmsc": (_GMSC, 16_000, 14),
}
TABLE_NAMES = (*_TABLES, "digits")


def table_task(folder: Path | None, name: str) -> TableTask:
    """Return a table by name; "digits" comes with scikit-learn."""
    if name == "digits":
        return _digits()
    columns, records, keep = _TABLES[name]
    path = find_file(folder, [f"tables/{name}.npz"], "Write it there with the arrays X and y.")
    arrays = read_archive(path, ["X", "y"])
    x, y = arrays["X"].astype(np.float64), arrays["y"].reshape(-1).astype(np.int64)
    rows = _parts(len(y), keep, 0)
    kept = (y == 1) | (rows == 0)
    return _split(name, records, 2, Preprocessing(tuple(columns)), x[kept], y[kept])


def _digits() -> TableTask:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    rules = Preprocessing(tuple(Number(f"pixel {number}", 0, 16) for number in range(64)))
    return _split("digits", 1_500, 10, rules, x, y.astype(np.int64))


def _parts(rows: int, parts: int, seed: int) -> NDArray[np.int64]:
    """Return a part per row, by a hash of its number: a public rule."""
    codes = given_ids(range(rows), rows)
    return np.asarray(assign_parts(codes, parts, seed, b"fold").numpy())


def _split(
    name: str,
    records: int,
    classes: int,
    rules: Preprocessing,
    x: NDArray[np.float64],
    y: NDArray[np.int64],
) -> TableTask:
    asked = _parts(len(y), _QUERY_PARTS, 1) == 0
    queries = np.flatnonzero(asked)[:_MOST_QUERIES]
    private, public = _table(rules, x[~asked]), _table(rules, x[queries])
    return TableTask(name, records, classes, rules, private, y[~asked], public, y[queries])


def _table(rules: Preprocessing, x: NDArray[np.float64]) -> dict[str, Any]:
    """Return the columns by name, with categories as text."""
    return {
        column.name: [str(int(value)) for value in values]
        if isinstance(column, Category)
        else values
        for column, values in zip(rules.columns, x.T, strict=True)
    }
