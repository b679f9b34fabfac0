"""Interval arithmetic is sound, exact and isotonic as executed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.intervals import Interval, OperandKind, product

seeds = st.integers(0, 10**6)
dtypes = st.sampled_from([torch.float32, torch.float64])


def _draw(
    generator: torch.Generator, shape, dtype, kind: OperandKind = OperandKind.ANY
) -> Interval:
    low = torch.randn(shape, generator=generator, dtype=dtype)
    if kind is OperandKind.POINT:
        return Interval.point(low)
    low = low.clamp(min=0) if kind is OperandKind.NONNEGATIVE else low
    return Interval(
        low,
        low
        + torch.rand(shape, generator=generator, dtype=dtype)
        * (torch.rand(shape, generator=generator) < 0.8),
    )


def _inside(generator: torch.Generator, outer: Interval) -> Interval:
    """Return a random sub-interval, which may touch the ends or be a single point."""
    first, second = (
        outer.lower
        + (outer.upper - outer.lower)
        * torch.rand(outer.shape, generator=generator).to(outer.lower.dtype)
        for _ in "ab"
    )
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    low = torch.where(torch.rand(outer.shape, generator=generator) < 0.3, outer.lower, low).clamp(
        outer.lower, outer.upper
    )
    high = torch.where(torch.rand(outer.shape, generator=generator) < 0.3, outer.upper, high).clamp(
        outer.lower, outer.upper
    )
    return Interval(torch.minimum(low, high), high)


def _contains(outer: Interval, inner: Interval) -> bool:
    return bool((outer.lower <= inner.lower).all()) and bool((inner.upper <= outer.upper).all())


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "one column"])
def test_refuses_crossed_ends(layout: str) -> None:
    lower, upper = torch.zeros(5, 40), torch.ones(5, 40)
    lower[3, 37] = 2.0
    if layout == "transposed":
        lower, upper = lower.t(), upper.t()
    if layout == "one column":
        lower, upper = lower[:, 37:38], upper[:, 37:38]
    with pytest.raises(
        hf.errors.UnsoundBounds, match=r"lower=2.0, upper=1.0 at index \(\d+, \d+\)"
    ):
        Interval(lower, upper)


def test_an_infinite_or_nan_number_takes_its_row_out_and_no_other() -> None:
    inf, nan = torch.inf, torch.nan
    bad = [
        (-inf, 0.0),
        (0.0, inf),
        (inf, inf),
        (-inf, -inf),
        (nan, 0.0),
        (0.0, nan),
        (nan, nan),
        (-inf, inf),
        (inf, nan),
    ]
    for place in (0, 16, 34):
        lower, upper = torch.full((len(bad) + 2, 35), -1.0), torch.ones(len(bad) + 2, 35)
        for row, (low, high) in enumerate(bad):
            lower[row + 1, place], upper[row + 1, place] = low, high
        contained, finite = Interval(lower, upper).zero_overflowed_rows()
        assert finite.tolist() == [True, *[False] * len(bad), True]
        assert torch.equal(contained.lower[[0, -1]], lower[[0, -1]])
        assert torch.equal(contained.upper[[0, -1]], upper[[0, -1]])
        assert bool((contained.lower[1:-1] == 0).all())
        assert bool((contained.upper[1:-1] == 0).all())


def test_parameters_are_always_finite() -> None:
    for low, high in (
        (torch.nan, 0.0),
        (0.0, torch.nan),
        (-torch.inf, 0.0),
        (0.0, torch.inf),
        (3e38, 3e38),
    ):
        with pytest.raises(hf.errors.UnsoundBounds, match="holds NaN or infinite ends"):
            hf.networks.ParameterBounds(
                1, {"w": Interval(torch.tensor([0.0, low]), torch.tensor([0.0, high]))}
            )


def test_refuses_ends_of_different_kind() -> None:
    with pytest.raises(hf.errors.UnsoundBounds, match="differ in kind"):
        Interval(torch.zeros(2), torch.zeros(3))


@settings(max_examples=60, deadline=None)
@given(seed=seeds, dtype=dtypes, operation=st.sampled_from(["__add__", "__sub__", "__mul__"]))
def test_elementwise_operations(seed, dtype, operation) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = _draw(generator, (5, 7), dtype), _draw(generator, (5, 7), dtype)
    small_a, small_b = _inside(generator, a), _inside(generator, b)
    result = getattr(a, operation)(b)
    assert _contains(result, getattr(small_a, operation)(small_b))
    corners = [
        getattr(Interval.point(s), operation)(Interval.point(t)).lower
        for s in (a.lower, a.upper)
        for t in (b.lower, b.upper)
    ]
    assert torch.equal(result.lower, torch.stack(corners).amin(0))
    assert torch.equal(result.upper, torch.stack(corners).amax(0))


@settings(max_examples=60, deadline=None)
@given(
    seed=seeds,
    dtype=dtypes,
    kind=st.sampled_from(OperandKind),
    shape=st.tuples(st.integers(1, 40), st.integers(1, 33), st.integers(1, 19)),
    stack=st.sampled_from([(), (3,)]),
)
def test_products(seed, dtype, kind, shape, stack) -> None:
    """Products are isotonic without slack, and exact up to rounding.

    Each end is the sum of the extreme products of end points.
    """
    generator = torch.Generator().manual_seed(seed)
    rows, inner, columns = shape
    a, b = (
        _draw(generator, (*stack, rows, inner), dtype, kind),
        _draw(generator, (*stack, inner, columns), dtype),
    )
    result = product(kind, a, b)
    small_a = a if kind is OperandKind.POINT else _inside(generator, a)
    assert _contains(result, product(kind, small_a, _inside(generator, b)))
    terms = torch.stack(
        [
            s[..., :, :, None] * t[..., None, :, :]
            for s in (a.lower, a.upper)
            for t in (b.lower, b.upper)
        ]
    )
    slack = 1e-4 if dtype == torch.float32 else 1e-12
    assert torch.allclose(result.lower, terms.amin(0).sum(-2), atol=slack)
    assert torch.allclose(result.upper, terms.amax(0).sum(-2), atol=slack)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, dtype=dtypes, kind=st.sampled_from(OperandKind))
def test_the_product_of_points_is_a_point(seed, dtype, kind) -> None:
    """The product of points is a point, so that the box of distance 0 holds exactly one model."""
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(9, 6, generator=generator, dtype=dtype)
    a = Interval.point(value.abs() if kind is OperandKind.NONNEGATIVE else value)
    result = product(kind, a, Interval.point(torch.randn(6, 5, generator=generator, dtype=dtype)))
    assert torch.equal(result.lower, result.upper)
