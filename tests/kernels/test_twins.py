"""The fused loops agree with their plain twins, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdfast.kernels import BLOCK, LOWEST, UNITS, fused, plain, units

DTYPES = [torch.float32, torch.float64]


def _interval(
    generator: torch.Generator, shape: tuple[int, ...], scale: float, dtype: torch.dtype, zeros: bool = False
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
)
def test_absorb_outer(seed, blocks, outputs, inputs, keep, floor, point, scale, dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    results = []
    parts = []
    for records in blocks:
        out = _interval(generator, (records, outputs), scale, dtype, zeros=True)
        entries = _interval(generator, (records, inputs), 1.0, dtype)
        parts.append((records, out, entries[0], None if point else entries[1]))
    for module in (fused, plain):
        totals = torch.zeros(2, outputs, inputs, dtype=torch.float64)
        largest = module.Largest.start(outputs, inputs, keep, floor, torch.zeros(1, dtype=dtype)) if keep else None
        for records, out, low, high in parts:
            module.absorb_outer(*out, low, high, records, totals, largest)
        results.append((totals, [largest.sums(wanted) for wanted in (keep, keep // 2, 1)] if largest else []))
    assert torch.equal(results[0][0], results[1][0])
    for ours, plainly in zip(results[0][1], results[1][1], strict=True):
        assert torch.equal(ours, plainly)


def test_the_selection_is_a_sort() -> None:
    """An oracle for the oracle: the k largest by sorting everything."""
    out = _interval(torch.Generator().manual_seed(0), (50, 3), 3000.0, torch.float32)
    ones = torch.ones(50, 1)
    largest = fused.Largest.start(3, 1, 6, LOWEST, ones)
    fused.absorb_outer(*out, ones, None, 50, torch.zeros(2, 3, 1, dtype=torch.float64), largest)
    low, high = (units(end).double().sort(0).values for end in out)
    for wanted in (6, 2, 5):
        assert torch.equal(largest.sums(wanted)[0, :, 0], low[-wanted:].sum(0))
        assert torch.equal(largest.sums(wanted)[1, :, 0], -high[:wanted].sum(0))


def test_padding_rows_are_ignored() -> None:
    generator = torch.Generator().manual_seed(0)
    out, entries = _interval(generator, (20, 4), 900.0, torch.float32), torch.randn(20, 5, generator=generator)
    results = []
    for junk in (0.0, 1e9):
        low, high = out[0].clone(), out[1].clone()
        low[12:], high[12:] = junk, junk
        totals = torch.zeros(2, 4, 5, dtype=torch.float64)
        fused.absorb_outer(low, high, entries, None, 12, totals, None)
        results.append(totals)
    assert torch.equal(*results)


def test_a_block_too_large_for_exact_sums_is_refused() -> None:
    big = torch.zeros(BLOCK + 1, 1)
    with pytest.raises(ValueError, match="exact up to"):
        fused.absorb_outer(big, big, big, None, BLOCK + 1, torch.zeros(2, 1, 1, dtype=torch.float64), None)


def test_the_largest_block_sums_exactly() -> None:
    full = torch.full((BLOCK, 1), 2.0 * UNITS)
    totals = torch.zeros(2, 1, 1, dtype=torch.float64)
    fused.absorb_outer(full, full, torch.ones(BLOCK, 1), None, BLOCK, totals, None)
    assert totals.flatten().tolist() == [BLOCK * UNITS, -BLOCK * UNITS]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    stack=st.sampled_from([None, 1, 3]),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 20)),
    dtype=st.sampled_from(DTYPES),
)
def test_matrix_products(seed, stack, shape, dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, inner, columns = shape
    front = () if stack is None else (stack,)
    left = _interval(generator, (*front, rows, inner), 1.0, dtype)
    right = _interval(generator, (*front, inner, columns), 1.0, dtype)
    for ours, oracle in zip(fused.interval_matmul(*left, *right), plain.interval_matmul(*left, *right), strict=True):
        assert torch.equal(ours, oracle)
    assert torch.equal(fused.ordered_matmul(left[0], right[0]), plain.ordered_matmul(left[0], right[0]))
    assert torch.allclose(fused.ordered_matmul(left[0], right[0]), left[0] @ right[0], atol=1e-5)


def test_units_are_whole_and_clipped() -> None:
    values = units(torch.tensor([-1e9, -0.5, 0.4, 1.5, 2.5, 1e9]))
    assert values.tolist() == [-UNITS, 0.0, 0.0, 2.0, 2.0, UNITS]
