"""Responses per query: the stable response, the two of the paper, and the budgeted response.

StableResponse adds as little noise as differential privacy allows at every distance
(docs/theory/stable-response.md). CauchyResponse and LaplaceResponse are the methods of the paper
(answer 1 if label + noise > 1/2), for two classes, written as tables. If rounding a row would
make its privacy loss against the row before it exceed epsilon, the row is replaced by the smallest
one for which it does not.

All answers are accounted for at one Rényi order, so each query gets an equal share of one Rényi
budget, and its table has as little noise as that share allows (docs/theory/budgeted-response.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import count

from jaxtyping import Int64
from torch import Tensor

from ..accounting import ApproximateGuarantee, Budget, RenyiGuarantee
from ..accounting.arithmetic import ABOVE, BELOW, SCALE, exp_below, round_up
from ..accounting.budget import check_delta, check_epsilon, decimal_at_most
from ..accounting.renyi import (
    COST_UNIT,
    best_order,
    first_row,
    following_row,
    minus_one,
    moment_above,
    renyi_budget,
)
from ..certificates import Certificate
from ..checks import as_float_or_nan, check_integer
from ..errors import InvalidInput
from ..relations import Neighbours
from .mechanism import PureMechanism, TableMechanism, check_classes, require_two_classes
from .table import (
    SYSTEM,
    ApproximateRows,
    Entropy,
    Table,
    decreasing_rows,
    row_count,
    wrong_label_shares,
)


@dataclass(frozen=True)
class StableResponse(TableMechanism):
    """The least noise that (epsilon, delta) per answer allows, at every distance.

    It works for any number of classes.

    Args:
        epsilon: The epsilon of each answer.
        delta: The delta of each answer; Q answers cost Q * delta. If it is above 0, the answer is
            exact from a finite distance on.

    Raises:
        InvalidInput: If a number is out of range.

    Guarantees:
        Each answer is (epsilon, delta)-differentially private given P1 and P2, for exactly
        the integers that are sampled; no table answers the true label more often at any distance,
        except in the last of 128 bits.

    Example:
        >>> import holdfast as hf, torch
        >>> certificate = hf.Certificate(torch.tensor([1]), torch.tensor([40]), "add_remove", 2)
        >>> mechanism = hf.StableResponse(epsilon=0.5)
        >>> bool(mechanism.keep_probability(certificate) > 0.999999)
        True
        >>> mechanism.release(certificate)
        tensor([1])
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta))

    @property
    def identity(self) -> str:
        return f"stable-response/1 epsilon={self.epsilon!r} delta={self.delta!r}"

    def guarantee(
        self, neighbours: Neighbours | str = Neighbours.ADD_REMOVE
    ) -> ApproximateGuarantee:
        return ApproximateGuarantee(self.epsilon, self.delta, Neighbours.of(neighbours))

    def table(self, classes: int = 2, reach: int | None = None) -> Table:
        check_classes(classes)
        return _table(self.epsilon, self.delta, classes, row_count(reach))


@lru_cache(maxsize=32)
def _table(epsilon: float, delta: float, classes: int, longest: int) -> Table:
    limit = ApproximateRows(epsilon, delta)
    return Table(decreasing_rows(limit.first(classes), limit.following, longest), classes)


@dataclass(frozen=True)
class CauchyResponse(PureMechanism, TableMechanism):
    """Smooth sensitivity: Cauchy noise of scale 6 exp(-epsilon k / 6) / epsilon at distance k.

    The paper's mechanism for one model and two classes. Its true privacy loss is at most
    epsilon / 6 per unit of distance.

    Args:
        epsilon: The epsilon of each answer.

    Example:
        >>> import holdfast as hf, torch
        >>> certificate = hf.Certificate(torch.tensor([1]), torch.tensor([40]), "replace", 2)
        >>> bool(hf.mechanisms.CauchyResponse(1.0).keep_probability(certificate) > 0.99)
        True
    """

    name_and_version = "cauchy-response/1"

    def table(self, classes: int = 2, reach: int | None = None) -> Table:
        require_two_classes("CauchyResponse", classes)
        return _cauchy(self.epsilon, row_count(reach))


@dataclass(frozen=True)
class LaplaceResponse(PureMechanism, TableMechanism):
    """Global sensitivity: Laplace noise of scale 1 / epsilon, whatever the distance.

    The paper's baseline for one model and two classes.

    Args:
        epsilon: The epsilon of each answer.

    Example:
        >>> import holdfast as hf
        >>> hf.mechanisms.LaplaceResponse(1.0).guarantee().epsilon
        1.0
    """

    name_and_version = "laplace-response/1"
    needs_distance = False

    def table(self, classes: int = 2, reach: int | None = None) -> Table:
        require_two_classes("LaplaceResponse", classes)
        return Table(
            (
                max(
                    _round_up_to_scale(math.exp(-self.epsilon / 2) / 2),
                    ApproximateRows(self.epsilon).first(2),
                ),
            ),
            2,
        )


@lru_cache(maxsize=32)
def _cauchy(epsilon: float, longest: int) -> Table:
    limit = ApproximateRows(epsilon)
    paper_rows = (
        _round_up_to_scale(math.atan(12 / epsilon * math.exp(-epsilon * k / 6)) / math.pi)
        for k in count()
    )
    first = max(next(paper_rows), limit.first(2))
    return Table(
        decreasing_rows(first, lambda row: max(next(paper_rows), limit.following(row)), longest), 2
    )


def _round_up_to_scale(probability: float) -> int:
    return round_up(Fraction(probability) * SCALE)


_LONGEST = 5_001  # maximum number of rows; each takes milliseconds to compute


@dataclass(frozen=True)
class BudgetedResponse(TableMechanism):
    """The least noise for at most `queries` answers under one budget, for any number of classes.

    Args:
        budget: The total budget; its delta must be above 0.
        queries: The number of answers that the budget has to last for.
        order: The Rényi order; by default the one whose binary table flips less than 1% from the
            smallest distance on. It is a function of public numbers only.

    Raises:
        InvalidInput: If the budget is too small for so many queries, or a number is out of range.

    Guarantees:
        Each answer has Rényi divergence at most `guarantee().cost` at order `guarantee().order`
        between neighbours, given P1 and P2; `queries` answers, adaptively chosen, are
        (budget.epsilon, budget.delta)-differentially private.

    Example:
        >>> import holdfast as hf
        >>> mechanism = hf.BudgetedResponse(hf.Budget(10.0, 1e-5), queries=1000)
        >>> 0.0 < mechanism.guarantee().cost < 0.01
        True
    """

    budget: Budget
    queries: int
    _: KW_ONLY
    order: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.budget, Budget):
            raise InvalidInput(
                f"budget is a {type(self.budget).__name__}: expected hf.Budget(epsilon, delta)"
            )
        object.__setattr__(self, "queries", check_integer("queries", self.queries, 1))
        if self.budget.delta == 0.0:
            raise InvalidInput(
                "delta=0: BudgetedResponse needs a delta above 0; for delta = 0 use "
                "StableResponse(epsilon / queries)"
            )
        order = (
            best_order(self.budget, self.queries)
            if self.order is None
            else as_float_or_nan(self.order)
        )
        if not 1.0 < order <= 1e9:
            raise InvalidInput(f"order={self.order!r}: expected a Rényi order above 1, at most 1e9")
        object.__setattr__(self, "order", order)
        if self.cost <= 0.0:
            raise InvalidInput(
                f"{self.queries} queries under {self.budget} "
                f"leave no Rényi budget at order {order:g}; "
                "raise epsilon or delta, ask fewer queries, or omit order="
            )

    @cached_property
    def cost(self) -> float:
        """The Rényi cost of one answer, rounded down: `queries` answers stay within the budget."""
        each = BELOW.divide(
            renyi_budget(
                decimal_at_most(self.budget.epsilon),
                decimal_at_most(self.budget.delta),
                self._order,
            ),
            Decimal(self.queries),
        )
        return int(BELOW.divide(each, Decimal(COST_UNIT))) * COST_UNIT

    @property
    def _order(self) -> float:
        assert self.order is not None
        return self.order

    @property
    def identity(self) -> str:
        budget = f"epsilon={self.budget.epsilon!r} delta={self.budget.delta!r}"
        return f"budgeted-response/1 {budget} queries={self.queries} order={self.order!r}"

    def guarantee(self, neighbours: Neighbours | str = Neighbours.ADD_REMOVE) -> RenyiGuarantee:
        return RenyiGuarantee(self._order, self.cost, Neighbours.of(neighbours))

    def release(
        self, certificate: Certificate, *, entropy: Entropy = SYSTEM
    ) -> Int64[Tensor, " queries"]:
        if len(certificate) > self.queries:
            raise InvalidInput(
                f"{len(certificate)} queries: this BudgetedResponse is for {self.queries} in "
                "all; create one with a larger queries="
            )
        return super().release(certificate, entropy=entropy)

    def table(self, classes: int = 2, reach: int | None = None) -> Table:
        check_classes(classes)
        return _budgeted_table(self._order, self.cost, classes, row_count(reach, _LONGEST))


@lru_cache(maxsize=32)
def _budgeted_table(order: float, cost: float, classes: int, longest: int) -> Table:
    limit = _RenyiRows(Decimal(order), Decimal(cost))
    return Table(decreasing_rows(limit.first(classes), limit.following, longest), classes)


@dataclass(frozen=True)
class _RenyiRows:
    """The smallest rows whose Rényi divergences, in both directions, are at most `cost`.

    Moments are rounded up and their limit is rounded down.
    """

    order: Decimal
    cost: Decimal

    @cached_property
    def _limit(self) -> Decimal:
        return exp_below(BELOW.multiply(minus_one(self.order), self.cost))

    def first(self, classes: int) -> int:
        """Return the row of distance 0, at which a neighbour may have another label.

        Probabilities are in units of 1 / SCALE^2, since the row is divided among the other labels.
        """
        split = wrong_label_shares(classes)
        fewest, most = min(split), max(split)

        def excess(row: int) -> Decimal:
            kept, led = (SCALE - row) * SCALE, row * fewest
            swapped = [(kept, led), (row * most, kept), *[(row * most, led)] * (classes - 2)]
            return ABOVE.divide(
                moment_above(swapped, self.order),
                BELOW.multiply(self._limit, Decimal(SCALE * SCALE)),
            )

        return smallest_feasible(
            excess, -(-SCALE * (classes - 1) // classes), first_row(self.order, self.cost, classes)
        )

    def following(self, row: int) -> int:
        """Return the row of the next distance after that of `row`, with the same label."""

        def excess(later: int) -> Decimal:
            forth = moment_above([(row, later), (SCALE - row, SCALE - later)], self.order)
            back = moment_above([(later, row), (SCALE - later, SCALE - row)], self.order)
            return ABOVE.divide(max(forth, back), BELOW.multiply(self._limit, Decimal(SCALE)))

        return smallest_feasible(
            excess, row, following_row(self.order, self.cost, math.log(row / SCALE))
        )


def smallest_feasible(excess: Callable[[int], Decimal], feasible: int, guess: float) -> int:
    """Return the smallest integer in 1..feasible with excess <= 1.

    The excess must fall towards `feasible`. `guess` is the logarithm of the result divided by
    SCALE, to float accuracy; the secant method refines it. The value returned was itself checked to
    be feasible; it is the smallest up to a few units in the last of 128 bits.
    """
    if excess(feasible) > 1:
        raise InvalidInput("the cost per query is too small for 128-bit tables; ask fewer queries")
    with localcontext(ABOVE):
        found, bump = (
            min(
                feasible,
                max(
                    1, _secant(excess, Decimal(feasible).ln(), Decimal(guess) + Decimal(SCALE).ln())
                ),
            ),
            1,
        )
    while excess(found) > 1:
        found, bump = min(feasible, found + bump), 2 * bump
    return found


def _secant(excess: Callable[[int], Decimal], top: Decimal, guess: Decimal) -> int:
    """Return approximately the integer at which the excess is 1; no proof relies on it."""
    before = min(top, guess)
    now = before - Decimal("1e-9")
    value_before = _log_excess_at(excess, before)
    for _ in range(12):
        value = _log_excess_at(excess, now)
        if abs(now - before) < Decimal("1e-42") or value == value_before:
            break
        step = value * (now - before) / (value - value_before)
        before, value_before, now = now, value, min(top, now - step)
    return int(now.exp())


def _log_excess_at(excess: Callable[[int], Decimal], log: Decimal) -> Decimal:
    return excess(max(1, int(log.exp()))).ln()
