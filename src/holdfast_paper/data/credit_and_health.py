"""Tables of credit and health records, and digits, with ranges that are known without the rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.examples.tables import find_file, read_archive
from holdfast.preprocessing import Preprocessing
from holdfast.preprocessing.columns import Category, Column, Number
from holdfast.records import assign_parts, given_ids

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
