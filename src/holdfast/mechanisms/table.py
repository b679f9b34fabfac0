"""Tables of probabilities per distance; exact sampling of answers and of the discrete Gaussian.

Two kinds of rows can belong to neighbouring data sets (P1 and P2 of the certificate): distances j
and j + 1 with the same label, and distances 0 and 0 with different labels. A table is private if
those pairs of rows are close. Rows are integers in units of 1 / SCALE. Each row is computed from
the *rounded* row before it and rounded up, so that privacy holds for the integers that are sampled,
not only for the exact formula (docs/theory/tables.md).

Randomness comes from the operating system. A seeded source exists for tests and simulations only.

The probability of n is proportional to exp(-n^2 / (2 scale^2)). The method is that of Canonne,
Kamath and Steinke (2020); docs/theory/release.md shows why it is exact. No floating-point number
occurs, and what is drawn does not depend on what the noise is added to.
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
from ..accounting.budget import decimal_at_most
from ..errors import InvalidInput

WIDTH = 16
"""The number of bytes per draw (128 bits)."""


class Entropy(Protocol):
    """A source of uniform 128-bit integers."""

    def draw(self) -> int:
        """Return a fresh uniform integer from 0 to 2^128 - 1."""


class SystemEntropy:
    """The random number generator of the operating system."""

    def draw(self) -> int:
        return int.from_bytes(secrets.token_bytes(WIDTH), "little")


class SeededEntropyForTests:
    """A repeatable source of randomness, for tests and simulations only.

    Answers drawn from it are NOT private: anyone who knows the seed knows the noise.

    Args:
        seed: The seed.

    Example:
        >>> import holdfast as hf
        >>> entropy = hf.mechanisms.SeededEntropyForTests(0)
        >>> entropy.draw() == entropy.draw()
        False
    """

    def __init__(self, seed: int) -> None:
        self._key = seed.to_bytes(16, "little")
        self._count = 0

    def draw(self) -> int:
        self._count += 1
        digest = hashlib.blake2b(
            self._count.to_bytes(16, "little"), digest_size=WIDTH, key=self._key
        )
        return int.from_bytes(digest.digest(), "little")


SYSTEM = SystemEntropy()


MAX_ROWS = 100_000
"""The maximum number of rows. Capping the distance at the last row preserves P1 and P2."""


@dataclass(frozen=True)
class Table:
    """The probability rows[j] / SCALE of not answering the true label, per distance j.

    Args:
        rows: The integers, from distance 0 on; the last one also applies to all larger distances.
        classes: The number of classes.

    Example:
        >>> import holdfast as hf
        >>> table = hf.StableResponse(1.0).table(classes=2)
        >>> table.row(0) > table.row(1)
        True
    """

    rows: tuple[int, ...]
    classes: int

    def row(self, distance: int) -> int:
        return self.rows[min(distance, len(self.rows) - 1)]

    def draw(self, label: int, distance: int, entropy: Entropy) -> int:
        """Draw an answer.

        Every label and distance takes two draws of 128 bits, so that time and entropy reveal
        nothing.
        """
        first, second = entropy.draw(), entropy.draw()
        other = (second * (self.classes - 1)) >> 128
        other += other >= label
        return label if first >= self.row(distance) else other

    def outcome(self, label: int, distance: int) -> list[int]:
        """Return the exact probability of every answer, as integers in units of 1 / SCALE^2."""
        row = self.row(distance)
        others = iter(wrong_label_shares(self.classes))
        return [
            (SCALE - row) * SCALE if answer == label else row * next(others)
            for answer in range(self.classes)
        ]

    def keep_probability(self, distances: Int64[Tensor, " queries"]) -> Float64[Tensor, " queries"]:
        """Return the probability of the true label at each distance, as floats."""
        return self._kept[distances.clamp(max=len(self.rows) - 1)]

    @cached_property
    def _kept(self) -> Tensor:
        return torch.tensor([(SCALE - row) / SCALE for row in self.rows], dtype=torch.float64)


def wrong_label_shares(classes: int) -> list[int]:
    """Return how many 128-bit numbers lead to each label other than the true one, in order."""
    others = classes - 1
    ends = [-(-k * SCALE // others) for k in range(classes)]
    return [ends[k + 1] - ends[k] for k in range(others)]


def inverse_cdf(rows: Sequence[int], number: int) -> int:
    """Return the index of the row in whose part of 0..SCALE-1 the number falls.

    All rows are examined, whatever the result is.
    """
    found, end = 0, 0
    for row in rows[:-1]:
        end += row
        found += number >= end
    return found


def row_count(reach: int | None, longest: int = MAX_ROWS) -> int:
    """Return the number of rows of a table up to distance `reach`, or the maximum if it is None."""
    return longest if reach is None else min(reach + 1, longest)


def decreasing_rows(
    first: int, step: Callable[[int], int], longest: int = MAX_ROWS
) -> tuple[int, ...]:
    """Return `first`, step(first), step(step(first)), ..., as long as the rows decrease.

    There are at most `longest` rows.
    """

    def rows() -> Iterator[int]:
        row = first
        yield row
        while (following := min(row, step(row))) != row:
            row = following
            yield row

    return tuple(islice(rows(), longest))


@dataclass(frozen=True)
class ApproximateRows:
    """The smallest rows that (epsilon, delta) allows.

    The arithmetic is exact: it uses fractions, with a lower bound in place of e^epsilon.
    """

    epsilon: float
    delta: float = 0.0

    @cached_property
    def _ratio(self) -> Fraction:
        return ratio_below(decimal_at_most(self.epsilon))

    @cached_property
    def _spare(self) -> int:
        return round_down(Fraction(decimal_at_most(self.delta)) * SCALE)

    def first(self, classes: int) -> int:
        """Return the row of distance 0, at which a neighbour may have another label.

        The probability of keeping a label is at most e^epsilon times that of giving the same answer
        under the other label, plus delta.
        """
        share = SCALE // (classes - 1)
        if share * self._ratio < share + 1:
            raise InvalidInput(
                f"epsilon={self.epsilon!r}: too small for 128-bit tables; expected at least 1e-30"
            )
        return max(
            0, round_up(Fraction((SCALE - self._spare) * SCALE) / (SCALE + self._ratio * share))
        )

    def following(self, row: int) -> int:
        """Return the smallest row that may follow `row`.

        The probabilities of keeping the label and of not keeping it are both within (epsilon,
        delta) of those of `row`.
        """
        unkept = round_up((row - self._spare) / self._ratio)
        kept = round_down(self._ratio * (SCALE - row)) + self._spare
        return max(0, unkept, SCALE - kept)


def draw_discrete_gaussian(scale: int, entropy: Entropy = SYSTEM) -> int:
    """Draw an integer n with probability proportional to exp(-n^2 / (2 scale^2)).

    Args:
        scale: The parameter, close to the standard deviation; at least 1.
        entropy: The source of randomness; the operating system, except in tests.

    Raises:
        InvalidInput: If the scale is not at least 1.
    """
    if scale < 1:
        raise InvalidInput(f"scale={scale!r}: expected a whole number of at least 1")
    while True:
        candidate = _draw_discrete_laplace(scale, entropy)
        beyond = abs(candidate) - scale
        # exp(-|n| / scale) exp(-(|n| - scale)^2 / (2 scale^2)) is, up to a constant factor,
        # exp(-n^2 / (2 scale^2)).
        if _draw_with_exp_probability(beyond * beyond, 2 * scale * scale, entropy):
            return candidate


def _draw_discrete_laplace(scale: int, entropy: Entropy) -> int:
    """Draw an integer n with probability proportional to exp(-|n| / scale)."""
    while True:
        # n = rest + scale * whole splits exp(-n / scale) into two independent factors.
        rest = _draw_below(scale, entropy)
        if not _draw_with_small_exponent(rest, scale, entropy):
            continue
        whole = 0
        while _draw_with_small_exponent(1, 1, entropy):
            whole += 1
        size, negative = rest + scale * whole, _draw_below(2, entropy)
        if size or not negative:  # otherwise 0 would be drawn twice as often
            return -size if negative else size


def _draw_with_exp_probability(numerator: int, denominator: int, entropy: Entropy) -> bool:
    """Return True with probability exp(-numerator / denominator)."""
    whole, rest = divmod(numerator, denominator)
    return all(_draw_with_small_exponent(1, 1, entropy) for _ in range(whole)) and (
        _draw_with_small_exponent(rest, denominator, entropy)
    )


def _draw_with_small_exponent(numerator: int, denominator: int, entropy: Entropy) -> bool:
    """Return True with probability exp(-x), x = numerator / denominator, from 0 to 1.

    The first k draws with probabilities x, x/2, ..., x/k all succeed with probability x^k / k!, so
    the first failure is at an odd place with probability 1 - x + x^2/2! - x^3/3! + ...
    """
    place = 1
    while _draw_below(denominator * place, entropy) < numerator:
        place += 1
    return place % 2 == 1


def _draw_below(bound: int, entropy: Entropy) -> int:
    """Draw a uniform integer from 0 to bound - 1."""
    bits = (bound - 1).bit_length()
    words, mask = -(-bits // (8 * WIDTH)), (1 << bits) - 1
    while True:
        number = 0
        for _ in range(words):
            number = number << (8 * WIDTH) | entropy.draw()
        number &= mask
        if number < bound:
            return number
