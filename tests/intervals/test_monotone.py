"""exp, sigmoid, tanh and softplus are non-decreasing to the last bit, and accurate."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast.intervals import monotone

FUNCTIONS = {
    "exp": (monotone.exp, torch.exp),
    "sigmoid": (monotone.sigmoid, torch.sigmoid),
    "tanh": (monotone.tanh, torch.tanh),
    # torch.nn.functional.softplus drops e^-x for x > 20.
    "softplus": (monotone.softplus, lambda x: torch.logaddexp(x, torch.zeros_like(x))),
}
names = pytest.mark.parametrize("name", FUNCTIONS)
_LARGEST = 0x7F7FFFFF  # the bits of the largest finite float32


def _floats(first: int, last: int) -> torch.Tensor:
    """Return all float32 from one position in their order up to, but not including, another.

    Position 0 is 0.0; negative positions are negative numbers.
    """
    places = np.arange(first, last, dtype=np.int64)
    bits = np.where(places >= 0, places, (1 << 31) | -places).astype(np.uint32)
    return torch.from_numpy(bits.view(np.float32))


def _assert_increasing(function, first: int, last: int, step: int = 1 << 22) -> None:
    before = None
    for start in range(first, last, step):
        values = function(_floats(start, min(start + step, last)))
        assert not bool(values.isnan().any())
        assert bool((values[1:] >= values[:-1]).all()), (
            f"decreases between positions {start} and {start + step}"
        )
        assert before is None or values[0] >= before
        before = values[-1]


def _place(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


@names
@pytest.mark.parametrize(
    ("low", "high"), [(0.49, 0.51), (0.999, 1.001), (7.99, 8.01), (0.0, 1e-38)]
)
def test_increasing_over_all_float32_of_a_stretch(name: str, low: float, high: float) -> None:
    function = FUNCTIONS[name][0]
    first, last = _place(low), min(_place(high), _place(low) + 400_000)
    _assert_increasing(function, first, last)
    _assert_increasing(function, -last, -first)


@names
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_increasing_across_the_seams_of_the_tables(name: str, dtype: torch.dtype) -> None:
    """The functions are non-decreasing at every seam of every table, and next to it."""
    function = FUNCTIONS[name][0]
    cells = torch.arange(-40 * 1024, 40 * 1024, dtype=torch.float64) / 1024
    powers = torch.arange(-100 * 256, 100 * 256, dtype=torch.float64) * (np.log(2.0) / 256)
    seams = torch.cat([cells, powers, powers / 2]).to(dtype).sort().values
    points = [seams]
    for toward in (-np.inf, np.inf):
        step = seams
        for _ in range(3):
            step = torch.nextafter(step, torch.full_like(step, toward))
            points.append(step)
    values = function(torch.cat(points).sort().values)
    assert bool((values[1:] >= values[:-1]).all())


@names
@pytest.mark.parametrize(
    ("dtype", "slack"), [(torch.float32, 2e-7), (torch.float64, 2e-11)], ids=str
)
def test_accurate(name: str, dtype: torch.dtype, slack: float) -> None:
    ours, library = FUNCTIONS[name]
    x = torch.linspace(-30, 30, 100_003, dtype=dtype)
    expected = library(x)
    assert float(((ours(x) - expected).abs() / expected.abs().clamp(min=1)).max()) < slack


@names
def test_increasing_at_extreme_arguments(name: str) -> None:
    x = torch.tensor([-3e38, -1e4, -50.0, 50.0, 1e4, 3e38])
    values = FUNCTIONS[name][0](x)
    assert bool((values[1:] >= values[:-1]).all())
    assert not bool(values.isnan().any())


def test_exp_of_zero_is_one() -> None:
    assert monotone.exp(torch.zeros(1)).item() == 1.0
    assert monotone.tanh(torch.zeros(1)).item() == 0.0


@pytest.mark.slow
@names
def test_increasing_over_all_of_float32(name: str) -> None:
    """The functions are non-decreasing over all finite float32 (about 4.3 billion)."""
    _assert_increasing(FUNCTIONS[name][0], -_LARGEST, _LARGEST + 1, step=1 << 24)
