"""Exact sampling of the discrete Gaussian, with whole numbers and random bits alone.

The probability of n is proportional to exp(-n^2 / (2 scale^2)). The method is that of Canonne,
Kamath and Steinke (2020); docs/theory/release.md shows why it is exact. No floating-point number
occurs, and what is drawn does not depend on what the noise is added to.
"""

from __future__ import annotations

from ..errors import InvalidInput
from .table import SYSTEM, WIDTH, Entropy


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
