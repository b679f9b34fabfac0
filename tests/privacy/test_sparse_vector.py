"""Sparse vector: exact enumeration of all transcripts of short adaptive sessions."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import pytest
import torch

import holdfast as hf
from holdfast.accounting.arithmetic import SCALE
from holdfast.mechanisms import SparseVector

from .checker import exp_lower

SETTINGS = [(1.0, 0.05, 1), (0.5, 0.1, 1), (4.0, 1e-3, 2), (2.0, 0.02, 2)]


def likelihoods(tables: SparseVector, weights: list[int], distance: int) -> dict[str, list[int]]:
    """Return, per verdict, the joint weight of every head start and the transcript so far."""
    doubts = [tables.unstable_probability(distance, head) for head in range(len(weights))]
    return {
        "stable": [w * (SCALE - d) for w, d in zip(weights, doubts, strict=True)],
        "unstable": [w * d for w, d in zip(weights, doubts, strict=True)],
    }


def worst(
    tables: SparseVector,
    asks: int,
    ratio: Fraction,
    pairs,
    p: list[int],
    q: list[int],
    unstable: int = 0,
) -> Fraction:
    """Return the maximum over adaptive queries and events of P(event) - ratio * Q(event).

    It is a fraction of the scale so far. `pairs` lists the possible queries: their distances under
    the two data sets and whether the labels agree. If they do not, a stable verdict reveals the
    label, and the two data sets share no transcript from there on.
    """
    if asks == 0 or unstable == tables.unstable:
        return max(Fraction(0), Fraction(sum(p)) - ratio * sum(q))
    best = Fraction(0)
    for here, there, agree in pairs:
        first, second = likelihoods(tables, p, here), likelihoods(tables, q, there)
        value = worst(
            tables, asks - 1, ratio, pairs, first["unstable"], second["unstable"], unstable + 1
        )
        if agree:
            value += worst(
                tables, asks - 1, ratio, pairs, first["stable"], second["stable"], unstable
            )
        else:
            value += sum(first["stable"])
        best = max(best, value / SCALE)
    return best


def query_pairs(tables: SparseVector) -> list[tuple[int, int, bool]]:
    """Return all pairs that P1 and P2 allow, for distances around the threshold and at the ends."""
    top = tables.threshold
    distances = sorted({0, 1, max(0, top - 1), top, top + 1, top + 3})
    agreeing = [
        (a, b, True)
        for a, b in itertools.product(range(top + 5), repeat=2)
        if abs(a - b) == 1 and (a in distances or b in distances)
    ]
    return [*agreeing, (0, 0, False)]


@pytest.mark.parametrize(("epsilon", "delta", "unstable"), SETTINGS)
def test_short_adaptive_sessions_are_private(epsilon: float, delta: float, unstable: int) -> None:
    tables = SparseVector(epsilon, delta, unstable, 100_000)
    heads = list(tables.head_start_weights)
    assert sum(heads) == SCALE
    loss = worst(tables, 3, exp_lower(Fraction(epsilon)), query_pairs(tables), heads, heads) / SCALE
    assert 0 < loss <= Fraction(delta)


@dataclass(frozen=True)
class HalfTheNoise(SparseVector):
    """Query noise c / e2 instead of 2 c / e2, as if distances were monotone (Lyu, Su, Li 2017)."""

    def unstable_probability(self, distance: int, head: int) -> int:
        beyond = max(0, distance - self.threshold + head)
        return self._unstable_rows[min(beyond, len(self._unstable_rows) - 1)]


@dataclass(frozen=True)
class NoHeadStart(SparseVector):
    """A threshold without noise: stable verdicts seem to cost nothing but reveal everything."""

    @cached_property
    def head_start_weights(self) -> tuple[int, ...]:
        full = SparseVector(
            self.epsilon, self.delta, self.unstable, self.max_distance
        ).head_start_weights
        return (SCALE, *[0] * (len(full) - 1))


@dataclass(frozen=True)
class TooFewHeads(SparseVector):
    """The last head start is ten times as likely as delta."""

    @cached_property
    def head_start_weights(self) -> tuple[int, ...]:
        return SparseVector(
            self.epsilon, min(0.9, 10 * self.delta), self.unstable, self.max_distance
        ).head_start_weights


@pytest.mark.parametrize("broken", [HalfTheNoise, NoHeadStart, TooFewHeads])
def test_broken_sessions_are_caught(broken) -> None:
    found = []
    for epsilon, delta, unstable in [*SETTINGS, (1.0, 1e-4, 1), (3.0, 1e-4, 3)]:
        tables = broken(epsilon, delta, unstable, 100_000)
        heads = list(tables.head_start_weights)
        loss = (
            worst(tables, 3, exp_lower(Fraction(epsilon)), query_pairs(tables), heads, heads)
            / SCALE
        )
        found.append(loss > Fraction(delta))
    assert any(found)


@pytest.mark.parametrize(
    ("epsilon", "delta", "unstable"),
    [(0.001, 1e-6, 1), (0.1, 1e-9, 3), (1.0, 1e-5, 10), (10.0, 1e-5, 100)],
)
def test_stated_guarantees_of_the_tables(epsilon: float, delta: float, unstable: int) -> None:
    tables = SparseVector(epsilon, delta, unstable, 100_000)
    first, second = (exp_lower(Fraction(share)) for share in tables._epsilon_split)
    assert sum(
        Fraction(share) * times
        for share, times in zip(tables._epsilon_split, (1, unstable), strict=True)
    ) <= Fraction(epsilon)
    heads = tables.head_start_weights
    assert sum(heads) == SCALE
    assert heads[-1] <= Fraction(delta) * SCALE
    assert all(heads[h] <= first * heads[h + 1] for h in range(len(heads) - 1))
    doubts = [
        tables.unstable_probability(distance, 0) for distance in range(tables.threshold + 5000)
    ]
    assert all(doubts[m] >= doubts[m + 1] for m in range(len(doubts) - 1))
    assert all(doubts[m] <= second * doubts[m + 2] for m in range(len(doubts) - 2))
    assert {tables.unstable_probability(0, head) for head in range(len(heads))} == {SCALE}


def certificate(distances: list[int]) -> hf.Certificate:
    return hf.Certificate(
        torch.arange(len(distances)) % 3, torch.tensor(distances), "add_remove", 3
    )


def test_a_session_answers_stable_queries_exactly_and_ends() -> None:
    session = hf.SparseVector(2.0, 1e-5, unstable=2, max_distance=1000).session(
        entropy=hf.mechanisms.SeededEntropyForTests(1)
    )
    assert session.ask(certificate([900] * 6)).tolist() == [0, 1, 2, 0, 1, 2]
    assert session.ask(certificate([0, 900, 0, 900])).tolist() == [
        hf.mechanisms.UNSTABLE,
        1,
        hf.mechanisms.UNSTABLE,
    ]
    assert session.ended
    with pytest.raises(hf.BudgetExhausted, match="2 unstable verdicts"):
        session.ask(certificate([900]))


def test_a_session_refuses_what_cannot_work() -> None:
    with pytest.raises(hf.errors.InvalidInput, match="threshold is"):
        hf.SparseVector(0.1, 1e-9, unstable=1, max_distance=10)
    with pytest.raises(hf.errors.InvalidInput, match="delta above 0"):
        hf.SparseVector(1.0, 0.0, unstable=1, max_distance=10)
    # Tables for these settings would take too long to build.
    for epsilon, delta in [(0.1, 1e-38), (1e-9, 1e-12), (1e-6, 1e-29), (1.0, 1e-40)]:
        with pytest.raises(hf.errors.InvalidInput):
            hf.SparseVector(epsilon, delta, 1, 1000)
    assert hf.SparseVector(1000.0, 1e-6, 1, 1000).threshold < 3
    session = hf.SparseVector(2.0, 1e-5, unstable=1, max_distance=1000).session()
    with pytest.raises(hf.errors.InvalidInput, match="'remove'"):
        session.ask(hf.Certificate(torch.tensor([0]), torch.tensor([5]), "remove", 2))
