"""Privacy budgets (totals that may be spent) and guarantees (what one answer costs one record)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ..checks import as_float_or_nan
from ..errors import InvalidInput
from ..relations import Neighbours

LARGEST_EPSILON = 1000.0
"""Larger values of epsilon give no meaningful protection and are rejected as mistakes."""


@dataclass(frozen=True)
class Budget:
    """A total (epsilon, delta) over all answers, per record or per person.

    Args:
        epsilon: The total epsilon, above 0 and at most 1000.
        delta: The total delta, from 0 to below 1; it should be far below 1 / number of records (or
            persons). 0 is pure differential privacy.

    Raises:
        InvalidInput: If a number is out of range.

    Example:
        >>> import holdfast as hf
        >>> print(hf.Budget(10.0, 1e-5))
        (10, 1e-05)
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta))

    def __str__(self) -> str:
        return f"({self.epsilon:g}, {self.delta:g})"


@dataclass(frozen=True)
class ApproximateGuarantee:
    """A guarantee that each charge is (epsilon, delta)-differentially private (delta = 0: pure).

    Args:
        epsilon: The epsilon of one charge.
        delta: The delta of one charge.
        neighbours: The relation that it holds for, with the unit that is protected.

    Example:
        >>> import holdfast as hf
        >>> print(hf.StableResponse(0.5).guarantee("replace"))
        (0.5, 0)-differential privacy per record, replace
    """

    epsilon: float
    delta: float
    neighbours: Neighbours

    def __str__(self) -> str:
        relation = self.neighbours
        return (
            f"({self.epsilon:g}, "
            f"{self.delta:g})-differential privacy per {relation.unit}, {relation.value}"
        )


@dataclass(frozen=True)
class RenyiGuarantee:
    """A bound on the Rényi divergence between the answers of neighbouring data sets.

    Args:
        order: The order of the divergence.
        cost: The bound, in nats, per answer.
        neighbours: The relation that it holds for, with the unit that is protected.

    Example:
        >>> import holdfast as hf
        >>> guarantee = hf.BudgetedResponse(hf.Budget(1.0, 1e-6), queries=10).guarantee()
        >>> 1.0 < guarantee.order
        True
    """

    order: float
    cost: float
    neighbours: Neighbours

    def __str__(self) -> str:
        relation = self.neighbours
        return (
            f"({self.order:g}, "
            f"{self.cost:g})-Rényi differential privacy per {relation.unit}, {relation.value}"
        )


Guarantee = ApproximateGuarantee | RenyiGuarantee


def as_decimal(value: float) -> Decimal:
    """Return the shortest decimal that reads back as `value`: 0.1, not its binary expansion.

    Budgets are kept in this form, since it is the number that people write and read.
    """
    return Decimal(repr(value))


def decimal_at_most(value: float) -> Decimal:
    """Return the smaller of the exact value of a float and its shortest decimal form.

    Tables are built for this value, so that they hold for both.
    """
    return min(Decimal(value), as_decimal(value))


def check_epsilon(value: Any) -> float:
    """Return epsilon as a float; raise InvalidInput unless 0 < epsilon <= LARGEST_EPSILON."""
    number = as_float_or_nan(value)
    if not 0.0 < number <= LARGEST_EPSILON:
        raise InvalidInput(
            f"epsilon={value!r}: expected a number above 0 and at most {LARGEST_EPSILON:g}; "
            "try epsilon=1.0"
        )
    return number


def check_delta(value: Any) -> float:
    """Return delta as a float; raise InvalidInput unless 0 <= delta < 1."""
    number = as_float_or_nan(value)
    if not 0.0 <= number < 1.0:
        raise InvalidInput(
            f"delta={value!r}: expected a number of at least 0 and below 1, ideally far below 1 "
            "/ (number of records or persons); try delta=1e-6"
        )
    return number
