"""Budgeted response: the least noise for a known number of queries under a total (epsilon, delta).

Everything is accounted at one Renyi order, so each query gets an equal part of one Renyi budget and its table is as
noiseless as that part allows. (docs/theory/budgeted-response.md)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property, lru_cache

from jaxtyping import Int64
from torch import Tensor

from ..accounting import Budget, RenyiGuarantee
from ..accounting.arithmetic import ABOVE, BELOW, SCALE, exp_below
from ..accounting.budget import least
from ..accounting.renyi import COST_UNIT, best_order, first_row, following_row, less_one, moment_above, renyi_budget
from ..certificates import Certificate
from ..checks import as_float_or_nan, check_integer
from ..errors import InvalidInput
from ..relations import Neighbours
from .mechanism import TableMechanism, check_classes
from .table import SYSTEM, Entropy, Table, chain, rows_to, shares

_LONGEST = 5_001  # rows; each takes milliseconds


@dataclass(frozen=True)
class BudgetedResponse(TableMechanism):
    """For at most `queries` answers under the budget, for any number of classes. The budget needs a delta above 0.

    `order`: the Renyi order; by default the one whose binary table flips less than 1% from the smallest distance on. It
    is a function of budget and queries alone, and so is public.

    Guarantees
    ----------
    Each answer has Renyi divergence at most `guarantee().cost` at `guarantee().order` between neighbours, given P1 and P2;
    `queries` answers, adaptively chosen, are (budget.epsilon, budget.delta)-differentially private.
    """

    budget: Budget
    queries: int
    order: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.budget, Budget):
            raise InvalidInput(f"budget is a {type(self.budget).__name__}: expected hf.Budget(epsilon, delta)")
        object.__setattr__(self, "queries", check_integer("queries", self.queries, 1))
        if self.budget.delta == 0.0:
            raise InvalidInput("delta=0: BudgetedResponse needs a delta above 0; for delta = 0 use StableResponse(epsilon / queries)")
        order = best_order(self.budget, self.queries) if self.order is None else as_float_or_nan(self.order)
        if not 1.0 < order <= 1e9:
            raise InvalidInput(f"order={self.order!r}: expected a Renyi order above 1, at most 1e9")
        object.__setattr__(self, "order", order)
        if self.cost <= 0.0:
            raise InvalidInput(
                f"{self.queries} queries under {self.budget} leave no Renyi budget at order {order:g}; "
                "raise epsilon or delta, ask fewer queries, or leave the order open"
            )

    @cached_property
    def cost(self) -> float:
        """The Renyi cost of one answer, rounded down: `queries` of them stay within the budget."""
        each = BELOW.divide(renyi_budget(least(self.budget.epsilon), least(self.budget.delta), self._order), Decimal(self.queries))
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

    def release(self, certificate: Certificate, entropy: Entropy = SYSTEM) -> Int64[Tensor, " queries"]:
        if len(certificate) > self.queries:
            raise InvalidInput(f"{len(certificate)} queries: this BudgetedResponse is for {self.queries} in all; make one for more")
        return super().release(certificate, entropy)

    def table(self, classes: int = 2, reach: int | None = None) -> Table:
        check_classes(classes)
        return _table(self._order, self.cost, classes, rows_to(reach, _LONGEST))


@lru_cache(maxsize=8)
def _table(order: float, cost: float, classes: int, longest: int) -> Table:
    limit = _Renyi(Decimal(order), Decimal(cost))
    return Table(chain(limit.first(classes), limit.following, longest), classes)


@dataclass(frozen=True)
class _Renyi:
    """The smallest rows whose Renyi divergences, both ways, are at most the cost. Moments are rounded up, the limit down."""

    order: Decimal
    cost: Decimal

    @cached_property
    def _limit(self) -> Decimal:
        return exp_below(BELOW.multiply(less_one(self.order), self.cost))

    def first(self, classes: int) -> int:
        """Distance 0, where a neighbour may have another label: each row is a multiple of SCALE, split among the others."""
        split = shares(classes)
        fewest, most = min(split), max(split)

        def excess(row: int) -> Decimal:
            kept, led = (SCALE - row) * SCALE, row * fewest
            swapped = [(kept, led), (row * most, kept), *[(row * most, led)] * (classes - 2)]
            return ABOVE.divide(moment_above(swapped, self.order), BELOW.multiply(self._limit, Decimal(SCALE * SCALE)))

        return smallest(excess, -(-SCALE * (classes - 1) // classes), first_row(self.order, self.cost, classes))

    def following(self, row: int) -> int:
        """The distance after that of `row`, with the same label."""

        def excess(later: int) -> Decimal:
            forth = moment_above([(row, later), (SCALE - row, SCALE - later)], self.order)
            back = moment_above([(later, row), (SCALE - later, SCALE - row)], self.order)
            return ABOVE.divide(max(forth, back), BELOW.multiply(self._limit, Decimal(SCALE)))

        return smallest(excess, row, following_row(self.order, self.cost, math.log(row / SCALE)))


def smallest(excess: Callable[[int], Decimal], feasible: int, guess: float) -> int:
    """The smallest whole number in 1..feasible with excess <= 1, for an excess that falls towards `feasible`.

    `guess`: the logarithm of the answer over SCALE, to float accuracy; the secant method makes it exact. What is
    returned was itself found feasible; it is the smallest but for a few units in the last of 128 bits.
    """
    if excess(feasible) > 1:
        raise InvalidInput("the cost per query is too small for tables of 128 bits; ask fewer queries")
    with localcontext(ABOVE):
        found, bump = min(feasible, max(1, _secant(excess, Decimal(feasible).ln(), Decimal(guess) + Decimal(SCALE).ln()))), 1
    while excess(found) > 1:
        found, bump = min(feasible, found + bump), 2 * bump
    return found


def _secant(excess: Callable[[int], Decimal], top: Decimal, guess: Decimal) -> int:
    """Where the excess is 1, nearly: nothing relies on it."""
    before = min(top, guess)
    now = before - Decimal("1e-9")
    value_before = _at(excess, before)
    for _ in range(12):
        value = _at(excess, now)
        if abs(now - before) < Decimal("1e-42") or value == value_before:
            break
        step = value * (now - before) / (value - value_before)
        before, value_before, now = now, value, min(top, now - step)
    return int(now.exp())


def _at(excess: Callable[[int], Decimal], log: Decimal) -> Decimal:
    return excess(max(1, int(log.exp()))).ln()
