"""An exact check of whether tables of whole numbers are private.

It is independent of how the tables were built: bounds on e^x are partial sums of its series as
fractions, and Rényi divergences are mpmath intervals, while the tables are built with the decimal
module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache

from mpmath import iv, mpf

State = tuple[int, int]  # label, distance
Outcome = Callable[[int, int], Sequence[int]]


class NotPrivate(AssertionError):
    """Two neighbouring states reveal more than was claimed."""


@lru_cache(maxsize=256)
def exp_lower(x: Fraction) -> Fraction:
    """Return a lower bound on e^x for x >= 0, within a relative error of about 1e-90.

    It is a partial sum of positive terms.
    """
    halvings = max(0, int(x).bit_length())
    small = x / 2**halvings
    total, term, n = Fraction(1), Fraction(1), 0
    while term > Fraction(1, 10**110):
        n += 1
        term = term * small / n
        total += term
    total = Fraction((total.numerator << 400) // total.denominator, 1 << 400)
    for _ in range(halvings):
        total *= total
        total = Fraction((total.numerator << 400) // total.denominator, 1 << 400)
    return total


def neighbouring(classes: int, reach: int) -> Iterable[tuple[State, State]]:
    """Yield all pairs of states that P1 and P2 allow.

    Beyond distance 0, two labels stand for all of them by symmetry.
    """
    for first in range(classes):
        for second in range(classes):
            if first != second:
                yield (first, 0), (second, 0)
    for label in (0, classes - 1):
        for j in range(reach):
            yield (label, j), (label, j + 1)


def excess(p: Sequence[int], q: Sequence[int], ratio: Fraction) -> Fraction:
    """Return the maximum over events S of p(S) - ratio * q(S), in units of the whole numbers.

    Computed with integers, after multiplying by the ratio's denominator.
    """
    up, down = ratio.numerator, ratio.denominator
    return Fraction(sum(max(0, a * down - b * up) for a, b in zip(p, q, strict=True)), down)


def check_approximate(
    outcome: Outcome, pairs: Iterable[tuple[State, State]], epsilon: float, delta: float = 0.0
) -> int:
    """Raise NotPrivate unless every pair is (epsilon, delta)-close in both directions.

    Returns the number of pairs.
    """
    ratio, count = exp_lower(Fraction(epsilon)), 0
    for first, second in pairs:
        p, q = outcome(*first), outcome(*second)
        allowed = Fraction(delta) * sum(p)
        if sum(p) != sum(q) or min(*p, *q) < 0:
            raise NotPrivate(f"{first} and {second}: expected two distributions with the same sum")
        for a, b in ((p, q), (q, p)):
            if p != q and excess(a, b, ratio) > allowed:
                raise NotPrivate(
                    f"{first} and {second} are not ({epsilon:g}, {delta:g})-close: "
                    f"{[x / sum(p) for x in p]}, {[x / sum(q) for x in q]}"
                )
        count += 1
    return count


def check_renyi(
    outcome: Outcome, pairs: Iterable[tuple[State, State]], order: float, cost: float
) -> int:
    """Raise NotPrivate unless every pair has a Rényi divergence of at most `cost` both ways.

    Returns the number of pairs.
    """
    iv.prec = 400
    count = 0
    for first, second in pairs:
        p, q = outcome(*first), outcome(*second)
        for a, b in ((p, q), (q, p)):
            if p != q and not divergence(a, b, order).b <= mpf(cost):
                raise NotPrivate(
                    f"{first} and {second}: Rényi divergence of order {order:g} above {cost:g}"
                )
        count += 1
    return count


def divergence(p: Sequence[int], q: Sequence[int], order: float):
    """Return an interval that contains the Rényi divergence of order > 1."""
    a = iv.mpf(order)
    total = iv.mpf(0)
    for x, y in zip(p, q, strict=True):
        if x and not y:
            return iv.mpf("inf")
        if x:
            total += iv.exp(a * iv.log(iv.mpf(x)) + (1 - a) * iv.log(iv.mpf(y)))
    return iv.log(total / iv.mpf(sum(p))) / (a - 1)


def adaptive_excess(
    choices: Sequence[tuple[Sequence[int], Sequence[int]]], asks: int, ratio: Fraction
) -> Fraction:
    """Return the exact maximum of P(event) - ratio * Q(event) over adaptive queries and events.

    An adversary asks `asks` queries. `choices` lists, for each possible query, the probabilities of
    its answers under the two data sets, as whole numbers with the same sum.
    """

    def gain(left: int, p: int, q: int) -> int:
        if left == 0:
            return max(0, p - q)
        return max(
            sum(gain(left - 1, p * a, q * b) for a, b in zip(one, other, strict=True))
            for one, other in choices
        )

    scale = sum(choices[0][0])
    return Fraction(gain(asks, ratio.denominator, ratio.numerator), ratio.denominator * scale**asks)
