"""Tables and exact sampling: the probability, per distance, of not answering the true label.

Two kinds of rows can belong to neighbouring data sets (P1 and P2 of the certificate): distances j and j + 1 with
the same label, and distances 0 and 0 with different labels. A table is private if those pairs of rows
are. Each row is rounded up to a whole number of SCALE *given the rounded row before it*, so that the
rows that are sampled are private, not only those on paper (docs/theory/tables.md).

Randomness comes from the operating system. A seeded source exists for tests and simulations only.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import islice
from typing import Protocol

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..accounting.arithmetic import SCALE, ratio_below, round_down, round_up
from ..accounting.budget import least
from ..errors import InvalidInput

WIDTH = 16
"""Bytes in one draw: 128 bits."""


class Entropy(Protocol):
    """Uniform whole numbers of 128 bits."""

    def draw(self) -> int:
        """A fresh uniform whole number from 0 to 2^128 - 1."""


class SystemEntropy:
    """The operating system's generator."""

    def draw(self) -> int:
        return int.from_bytes(secrets.token_bytes(WIDTH), "little")


class SeededEntropyForTests:
    """Repeatable numbers. Answers drawn from it are NOT private: whoever knows the seed knows the noise."""

    def __init__(self, seed: int) -> None:
        self._key = seed.to_bytes(16, "little")
        self._count = 0

    def draw(self) -> int:
        self._count += 1
        digest = hashlib.blake2b(self._count.to_bytes(16, "little"), digest_size=WIDTH, key=self._key)
        return int.from_bytes(digest.digest(), "little")


SYSTEM = SystemEntropy()


LONGEST = 100_000
"""Rows at most. Beyond the last row the distance is capped, which keeps P1 and P2."""


@dataclass(frozen=True)
class Table:
    """`rows[j]` of SCALE: the probability of not answering the true label at distance j; the last row holds beyond it."""

    rows: tuple[int, ...]
    classes: int

    def row(self, distance: int) -> int:
        return self.rows[min(distance, len(self.rows) - 1)]

    def draw(self, label: int, distance: int, entropy: Entropy) -> int:
        """An answer. Two draws of 128 bits for every label and distance: time and entropy used tell nothing."""
        first, second = entropy.draw(), entropy.draw()
        other = (second * (self.classes - 1)) >> 128
        other += other >= label
        return label if first >= self.row(distance) else other

    def outcome(self, label: int, distance: int) -> list[int]:
        """The exact probability of every answer, as whole numbers of SCALE squared."""
        row = self.row(distance)
        others = iter(shares(self.classes))
        return [(SCALE - row) * SCALE if answer == label else row * next(others) for answer in range(self.classes)]

    def keep_probability(self, distances: Int64[Tensor, " queries"]) -> Float64[Tensor, " queries"]:
        """The probability of the true label at each distance, as floats."""
        return self._kept[distances.clamp(max=len(self.rows) - 1)]

    @cached_property
    def _kept(self) -> Tensor:
        return torch.tensor([(SCALE - row) / SCALE for row in self.rows], dtype=torch.float64)


def shares(classes: int) -> list[int]:
    """How `draw` divides 128 random bits among the labels other than the true one, in their order."""
    others = classes - 1
    ends = [-(-k * SCALE // others) for k in range(classes)]
    return [ends[k + 1] - ends[k] for k in range(others)]


def place(rows: Sequence[int], number: int) -> int:
    """The row in whose part of 0..SCALE-1 the number falls; every row is looked at, whichever it is."""
    found, end = 0, 0
    for row in rows[:-1]:
        end += row
        found += number >= end
    return found


def rows_to(reach: int | None, longest: int = LONGEST) -> int:
    """How many rows a table up to distance `reach` has; the longest, if it is None."""
    return longest if reach is None else min(reach + 1, longest)


def chain(first: int, step: Callable[[int], int], longest: int = LONGEST) -> tuple[int, ...]:
    """Rows from the first on, each by `step` of the one before it and never above it, until they no longer change."""

    def rows() -> Iterator[int]:
        row = first
        yield row
        while (following := min(row, step(row))) != row:
            row = following
            yield row

    return tuple(islice(rows(), longest))


@dataclass(frozen=True)
class Approximate:
    """The smallest rows that (epsilon, delta) allows. Exact: fractions, with a lower bound in place of e^epsilon."""

    epsilon: float
    delta: float = 0.0

    @cached_property
    def _ratio(self) -> Fraction:
        return ratio_below(least(self.epsilon))

    @cached_property
    def _spare(self) -> int:
        return round_down(Fraction(least(self.delta)) * SCALE)

    def first(self, classes: int) -> int:
        """Distance 0, where a neighbour may have another label: keeping is at most e^eps times being led there, plus delta."""
        share = SCALE // (classes - 1)
        if share * self._ratio < share + 1:
            raise InvalidInput(f"epsilon={self.epsilon!r}: too small for tables of 128 bits; expected at least 1e-30")
        return max(0, round_up(Fraction((SCALE - self._spare) * SCALE) / (SCALE + self._ratio * share)))

    def following(self, row: int) -> int:
        """The smallest row whose not keeping and whose keeping are both close enough to those of `row`."""
        unkept = round_up((row - self._spare) / self._ratio)
        kept = round_down(self._ratio * (SCALE - row)) + self._spare
        return max(0, unkept, SCALE - kept)
