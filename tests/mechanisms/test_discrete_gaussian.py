"""The sampler of the discrete Gaussian: exact in small parts, right on the whole, and public work.

The argument why it is exact is in docs/theory/release.md; these tests would catch a slip.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

import holdfast as hf
from holdfast.errors import InvalidInput
from holdfast.heads.release import Grid
from holdfast.mechanisms import table as sampler
from holdfast.mechanisms.table import SYSTEM, Entropy, draw_discrete_gaussian

DRAWS = 100_000


def expected_counts(scale: float, reach: int) -> np.ndarray:
    """Return the expected counts of -reach..reach, with the tails in the first and last."""
    numbers = np.arange(-reach - 100, reach + 101)
    weights = np.exp(-(numbers**2) / (2 * scale**2))
    weights /= weights.sum()
    inner = weights[100:-100].copy()
    inner[0] += weights[:100].sum()
    inner[-1] += weights[-100:].sum()
    return DRAWS * inner


def p_value(drawn: list[int], scale: float, reach: int) -> float:
    found = Counter(min(reach, max(-reach, number)) for number in drawn)
    counts = [found[number] for number in range(-reach, reach + 1)]
    return float(stats.chisquare(counts, expected_counts(scale, reach)).pvalue)


@pytest.mark.parametrize(
    "entropy", [hf.mechanisms.SeededEntropyForTests(3), SYSTEM], ids=["seeded", "system"]
)
@pytest.mark.parametrize("scale", [1, 5])
def test_the_right_scale_is_accepted_and_a_wrong_one_rejected(scale: int, entropy: Entropy) -> None:
    drawn = [draw_discrete_gaussian(scale, entropy) for _ in range(DRAWS)]
    assert p_value(drawn, scale, 3 * scale) > 1e-6
    assert p_value(drawn, 1.03 * scale, 3 * scale) < 1e-6
    assert p_value(drawn, 0.97 * scale, 3 * scale) < 1e-6


def test_a_scale_of_many_digits() -> None:
    scale = 3 * 2**64
    entropy = hf.mechanisms.SeededEntropyForTests(1)
    drawn = np.array([draw_discrete_gaussian(scale, entropy) / scale for _ in range(DRAWS)])
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    # The square of 3% more or less is 6 standard errors away.
    off = abs((drawn**2).mean() - 1.0) * math.sqrt(DRAWS / 2)
    assert off < 5 < 0.06 * math.sqrt(DRAWS / 2)


class Script:
    """An entropy source that returns given numbers, in order."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self._numbers = iter(numbers)

    def draw(self) -> int:
        return next(self._numbers)


def test_numbers_below_a_bound_are_uniform() -> None:
    """Over all values of the bits that are used, each number comes equally often."""
    found = Counter()
    for number in range(8):  # 3 bits for a bound of 6; numbers above are drawn again
        try:
            found[sampler._draw_below(6, Script((number,)))] += 1
        except StopIteration:
            found["again"] += 1
    assert found == {**dict.fromkeys(range(6), 1), "again": 2}


@pytest.mark.parametrize("misses_at", [1, 2, 3, 4, 5])
def test_draws_of_an_exponential_stop_at_the_first_miss(misses_at: int) -> None:
    """The draw at place k succeeds with probability x / k; a miss at an odd place gives True."""
    numbers = (0,) * (misses_at - 1) + (4 * misses_at - 1,)
    result = sampler._draw_with_small_exponent(3, 4, Script(numbers))
    assert result is (misses_at % 2 == 1)


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 4), (3, 4), (1, 1), (7, 2)])
def test_the_probability_of_an_exponential(numerator: int, denominator: int) -> None:
    entropy = hf.mechanisms.SeededEntropyForTests(numerator)
    true = sum(
        sampler._draw_with_exp_probability(numerator, denominator, entropy) for _ in range(DRAWS)
    )
    chance = math.exp(-numerator / denominator)
    assert abs(true - DRAWS * chance) <= 5 * math.sqrt(DRAWS * chance * (1 - chance))


class Counting:
    """System entropy that counts its draws."""

    def __init__(self, seed: int) -> None:
        self._source, self.count = hf.mechanisms.SeededEntropyForTests(seed), 0

    def draw(self) -> int:
        self.count += 1
        return self._source.draw()


@pytest.mark.parametrize("seed", range(5))
def test_work_and_noise_do_not_depend_on_the_weights(seed: int) -> None:
    grid = Grid.of(0.125, 6)
    used, noise = [], []
    for weights in (np.zeros((1, 6)), np.full((1, 6), 0.25), np.full((1, 6), -3.0e5)):
        entropy = Counting(seed)
        noise.append(grid.add_noise(weights, grid.sensitivity, entropy) - weights)
        used.append(entropy.count)
    assert len(set(used)) == 1
    assert np.abs(noise[0] - noise[1]).max() < 1e-15
    assert np.abs(noise[0] - noise[2]).max() < 1e-9


def test_seeds_of_other_generators_change_nothing() -> None:
    import random

    import torch

    grid, found = Grid.of(1.0, 2), []
    for _ in range(2):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        found.append(grid.add_noise(np.zeros((1, 2)), grid.sensitivity, SYSTEM).tolist())
    assert found[0] != found[1]


def test_a_scale_below_1_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 1"):
        draw_discrete_gaussian(0)
