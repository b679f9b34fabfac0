"""Budget: what may be spent in all. Guarantees: what one answer costs one record, as values."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ..checks import as_float_or_nan
from ..errors import InvalidInput
from ..relations import Neighbours

LARGEST_EPSILON = 1000.0
"""Beyond this an epsilon promises nothing; it is refused as a mistake."""


@dataclass(frozen=True)
class Budget:
    """A total (epsilon, delta) over all answers, per record."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta))

    def __str__(self) -> str:
        return f"({self.epsilon:g}, {self.delta:g})"


@dataclass(frozen=True)
class ApproximateGuarantee:
    """Each answer is (epsilon, delta)-differentially private; delta = 0 is pure."""

    epsilon: float
    delta: float
    neighbours: Neighbours
    unit: str = "record"

    def __str__(self) -> str:
        return f"({self.epsilon:g}, {self.delta:g})-differential privacy per {self.unit}, {self.neighbours.value}"


@dataclass(frozen=True)
class RenyiGuarantee:
    """Each answer has Renyi divergence of this order at most `cost` (nats) between neighbours."""

    order: float
    cost: float
    neighbours: Neighbours
    unit: str = "record"

    def __str__(self) -> str:
        return f"({self.order:g}, {self.cost:g})-Renyi differential privacy per {self.unit}, {self.neighbours.value}"


Guarantee = ApproximateGuarantee | RenyiGuarantee


def written(value: float) -> Decimal:
    """The number that people wrote and will read: 0.1, not the float beside it. Budgets are kept in these."""
    return Decimal(repr(value))


def least(value: float) -> Decimal:
    """The smaller of the float and the number that people wrote: what a table is made for, so that it holds for both."""
    return min(Decimal(value), written(value))


def check_epsilon(value: Any) -> float:
    """A positive epsilon of reasonable size."""
    number = as_float_or_nan(value)
    if not 0.0 < number <= LARGEST_EPSILON:
        raise InvalidInput(f"epsilon={value!r}: expected a number above 0, at most {LARGEST_EPSILON:g}; try epsilon=1.0")
    return number


def check_delta(value: Any) -> float:
    """A delta from 0 to below 1."""
    number = as_float_or_nan(value)
    if not 0.0 <= number < 1.0:
        raise InvalidInput(f"delta={value!r}: expected a number from 0 to below 1, far below 1 / number of records; try delta=1e-6")
    return number
