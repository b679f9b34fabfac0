"""The checker: whether tables of whole numbers are private, decided exactly and independently of how they were built.

Bounds on e^x are partial sums of its series as fractions; Renyi divergences are mpmath intervals. The tables themselves
are built with the decimal module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache

from mpmath import iv, mpf

State = tuple[int, int]  # label, distance
Outcome = Callable[[int, int], Sequence[int]]


class NotPrivate(AssertionError):
    """A pair of neighbouring states that gives more away than was claimed."""


@lru_cache(maxsize=256)
def exp_lower(x: Fraction) -> Fraction:
    """At most e^x, for x >= 0, within about 1e-90 relatively: a partial sum of positive terms."""
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
    """All pairs that P1 and P2 allow, up to the symmetry of the labels beyond distance 0."""
    for first in range(classes):
        for second in range(classes):
            if first != second:
                yield (first, 0), (second, 0)
    for label in (0, classes - 1):
        for j in range(reach):
            yield (label, j), (label, j + 1)


def excess(p: Sequence[int], q: Sequence[int], ratio: Fraction) -> Fraction:
    """max over events S of p(S) - ratio * q(S), in the unit of the whole numbers (the ratio's denominator multiplied out)."""
    up, down = ratio.numerator, ratio.denominator
    return Fraction(sum(max(0, a * down - b * up) for a, b in zip(p, q, strict=True)), down)


def check_approximate(outcome: Outcome, pairs: Iterable[tuple[State, State]], epsilon: float, delta: float = 0.0) -> int:
    """Raise NotPrivate unless every pair is (epsilon, delta)-close both ways; the number of pairs."""
    ratio, count = exp_lower(Fraction(epsilon)), 0
    for first, second in pairs:
        p, q = outcome(*first), outcome(*second)
        allowed = Fraction(delta) * sum(p)
        if sum(p) != sum(q) or min(*p, *q) < 0:
            raise NotPrivate(f"{first} and {second} are not distributions of one scale")
        for a, b in ((p, q), (q, p)):
            if p != q and excess(a, b, ratio) > allowed:
                raise NotPrivate(
                    f"{first} against {second}: more than ({epsilon:g}, {delta:g}): {[x / sum(p) for x in p]}, {[x / sum(q) for x in q]}"
                )
        count += 1
    return count


def check_renyi(outcome: Outcome, pairs: Iterable[tuple[State, State]], order: float, cost: float) -> int:
    """Raise NotPrivate unless the Renyi divergence of every pair is at most the cost both ways; the number of pairs."""
    iv.prec = 400
    count = 0
    for first, second in pairs:
        p, q = outcome(*first), outcome(*second)
        for a, b in ((p, q), (q, p)):
            if p != q and not divergence(a, b, order).b <= mpf(cost):
                raise NotPrivate(f"{first} against {second}: Renyi divergence of order {order:g} above {cost:g}")
        count += 1
    return count


def divergence(p: Sequence[int], q: Sequence[int], order: float):
    """An interval that holds the Renyi divergence of order a > 1."""
    a = iv.mpf(order)
    total = iv.mpf(0)
    for x, y in zip(p, q, strict=True):
        if x and not y:
            return iv.mpf("inf")
        if x:
            total += iv.exp(a * iv.log(iv.mpf(x)) + (1 - a) * iv.log(iv.mpf(y)))
    return iv.log(total / iv.mpf(sum(p))) / (a - 1)


def adaptive_excess(choices: Sequence[tuple[Sequence[int], Sequence[int]]], asks: int, ratio: Fraction) -> Fraction:
    """max over adaptive choices of `asks` queries and over events of P(event) - ratio * Q(event), exactly.

    `choices`: of each query, how likely its answers are under the two data sets, as whole numbers of one scale.
    """

    def gain(left: int, p: int, q: int) -> int:
        if left == 0:
            return max(0, p - q)
        return max(sum(gain(left - 1, p * a, q * b) for a, b in zip(one, other, strict=True)) for one, other in choices)

    scale = sum(choices[0][0])
    return Fraction(gain(asks, ratio.denominator, ratio.numerator), ratio.denominator * scale**asks)
