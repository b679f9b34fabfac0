"""The fused loops agree bit for bit with their plain reference implementations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdfast.kernels import LOWEST, MAX_BLOCK_RECORDS, UNITS, gradients, products, units

from . import plain

DTYPES = [torch.float32, torch.float64]


def _interval(
    generator: torch.Generator,
    shape: tuple[int, ...],
    scale: float,
    dtype: torch.dtype,
    zeros: bool = False,
) -> tuple[Tensor, Tensor]:
    low = scale * torch.randn(shape, generator=generator, dtype=dtype)
    high = low + scale * torch.rand(shape, generator=generator, dtype=dtype)
    if zeros:
        dead = torch.rand(shape, generator=generator) < 0.5
        low[dead], high[dead] = 0.0, 0.0
    return low, high


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    blocks=st.lists(st.integers(0, 90), min_size=1, max_size=4),
    outputs=st.integers(1, 11),
    inputs=st.integers(1, 35),
    keep=st.sampled_from([0, 1, 2, 7, 40]),
    floor=st.sampled_from([0, LOWEST]),
    point=st.booleans(),
    scale=st.sampled_from([1.0, 500.0, 1e6]),
    dtype=st.sampled_from(DTYPES),
    shared=st.booleans(),
)
def test_sums_of_gradients(
    seed, blocks, outputs, inputs, keep, floor, point, scale, dtype, shared
) -> None:
    generator = torch.Generator().manual_seed(seed)
    results = []
    parts = []
    for records in blocks:
        out = _interval(generator, (records, outputs), scale, dtype, zeros=True)
        entries = _interval(generator, (records, inputs), 1.0, dtype)
        sizes = torch.randint(1, 9, (records,), generator=generator)
        limits = UNITS // sizes if shared else None
        parts.append((out, entries[0], None if point else entries[1], limits))
    for module in (gradients, plain):
        totals = torch.zeros(2, outputs, inputs, dtype=torch.float64)
        largest = module.LargestEntries.start(outputs, inputs, keep, floor) if keep else None
        for out, low, high, limits in parts:
            module.add_gradients(*out, low, high, totals, largest, limits)
        results.append(
            (totals, [largest.sums(wanted) for wanted in (keep, keep // 2, 1)] if largest else [])
        )
    assert torch.equal(results[0][0], results[1][0])
    for fused, obvious in zip(results[0][1], results[1][1], strict=True):
        assert torch.equal(fused, obvious)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rounding_is_to_the_nearest_whole_number_ties_to_even(dtype) -> None:
    """Values are rounded to the nearest whole number, ties to even, as `round` does.

    All half-integers of the range and beyond are tested, and the floats next to them: the kernel
    rounds by adding and subtracting a large constant.
    """
    halves = torch.arange(-2 * UNITS - 40, 2 * UNITS + 41, dtype=dtype) / 2
    up, down = (
        torch.nextafter(halves, torch.full_like(halves, end)) for end in (torch.inf, -torch.inf)
    )
    extreme = torch.tensor([0.0, -0.0, 1e-40, 3e38, -3e38], dtype=dtype)
    values = torch.cat([halves, up, down, extreme])[None]
    for row in values.split(MAX_BLOCK_RECORDS, 1):
        totals = torch.zeros(2, 1, row.shape[1], dtype=torch.float64)
        ones = torch.ones(1, 1, dtype=dtype)
        gradients.add_gradients(ones, ones, row, None, totals, None)
        assert torch.equal(totals[0, 0], units(row[0]).double())
        assert torch.equal(totals[1, 0], -units(row[0]).double())


def test_a_product_that_overflows_is_clipped() -> None:
    out, entries = torch.tensor([[3e38], [-3e38]]), torch.tensor([[2.0, -2.0, 0.0]] * 2)
    for high in (None, entries):
        totals = torch.zeros(2, 1, 3, dtype=torch.float64)
        gradients.add_gradients(
            out[:1], out[:1], entries[:1], None if high is None else high[:1], totals, None
        )
        assert totals.tolist() == [[[UNITS, -UNITS, 0]], [[-UNITS, UNITS, 0]]]


def test_the_largest_entries_equal_those_of_a_sort() -> None:
    """The k largest entries equal those found by sorting all of them."""
    out = _interval(torch.Generator().manual_seed(0), (50, 3), 3000.0, torch.float32)
    ones = torch.ones(50, 1)
    largest = gradients.LargestEntries.start(3, 1, 6, LOWEST)
    gradients.add_gradients(*out, ones, None, torch.zeros(2, 3, 1, dtype=torch.float64), largest)
    low, high = (units(end).double().sort(0).values for end in out)
    for wanted in (6, 2, 5):
        assert torch.equal(largest.sums(wanted)[0, :, 0], low[-wanted:].sum(0))
        assert torch.equal(largest.sums(wanted)[1, :, 0], -high[:wanted].sum(0))


def test_a_block_too_large_for_exact_sums_is_refused() -> None:
    big = torch.zeros(MAX_BLOCK_RECORDS + 1, 1)
    with pytest.raises(ValueError, match="exact up to"):
        gradients.add_gradients(
            big, big, big, None, torch.zeros(2, 1, 1, dtype=torch.float64), None
        )


def test_the_largest_block_sums_exactly() -> None:
    full = torch.full((MAX_BLOCK_RECORDS, 1), 2.0 * UNITS)
    totals = torch.zeros(2, 1, 1, dtype=torch.float64)
    gradients.add_gradients(full, full, torch.ones(MAX_BLOCK_RECORDS, 1), None, totals, None)
    assert totals.flatten().tolist() == [MAX_BLOCK_RECORDS * UNITS, -MAX_BLOCK_RECORDS * UNITS]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    stack=st.sampled_from([None, 1, 3]),
    rows=st.sampled_from([1, 2, 7, 8, 33, 300]),
    inner=st.sampled_from([1, 2, 7, 8, 9, 16, 35]),
    columns=st.sampled_from([1, 2, 3, 7, 8, 9, 17, 40]),
    kind=st.sampled_from(["point", "nonnegative", "any", "points"]),
    dtype=st.sampled_from(DTYPES),
)
def test_products(seed, stack, rows, inner, columns, kind, dtype) -> None:
    """Every product loop gives the oracle's bits, whatever kind of operand is declared."""
    generator = torch.Generator().manual_seed(seed)
    front = () if stack is None else (stack,)
    low, high = _interval(generator, (*front, rows, inner), 1.0, dtype, zeros=True)
    if kind in ("point", "points"):
        high = low
    elif kind == "nonnegative":
        low, high = low.clamp(min=0), high.clamp(min=0)
    right = _interval(generator, (*front, inner, columns), 1.0, dtype)
    right = (right[0], right[0]) if kind == "points" else right
    ours = products.interval_product(low, high, *right, kind == "nonnegative")
    for end, oracle in zip(ours, plain.interval_product(low, high, *right), strict=True):
        assert torch.equal(end, oracle)
        assert not bool((torch.signbit(end) & (end == 0)).any()), "zero must have a positive sign"
    middle = (low + high) / 2 @ (right[0] + right[1]) / 2
    assert torch.allclose((ours[0] + ours[1]) / 2, middle, atol=inner * 1.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [1, 12])
def test_a_product_is_rounded_before_it_is_added(dtype, columns: int) -> None:
    """Products are rounded before they are added, in both orders of the terms.

    (1 + e)^2 - (1 + 2e) is e^2 with a fused multiply-add and 0 without.
    """
    e = torch.finfo(dtype).eps
    left = torch.tensor([[1 + 2 * e, 1 + e], [1 + e, 1 + 2 * e]], dtype=dtype).repeat(40, 1)
    right = torch.tensor([[-1.0], [1 + e]], dtype=dtype).repeat(1, columns)
    flipped = torch.tensor([[1 + e], [-1.0]], dtype=dtype).repeat(1, columns)
    for rows, vectors in ((left[::2], right), (left[1::2], flipped)):
        low, high = products.interval_product(rows, rows, vectors, vectors)
        assert torch.equal(low, torch.zeros_like(low))
        assert torch.equal(high, torch.zeros_like(high))
        assert torch.equal(low, products.interval_product(rows, rows + 0, vectors, vectors + 0)[0])


def test_units_are_whole_and_clipped() -> None:
    values = units(torch.tensor([-1e9, -0.5, 0.4, 1.5, 2.5, 1e9]))
    assert values.tolist() == [-UNITS, 0.0, 0.0, 2.0, 2.0, UNITS]
