"""The matrix product adds in an order that depends on shapes only."""

from __future__ import annotations

import pytest
import torch

from holdfast.intervals import exact

SHAPES = [(64, 100, 5), (64, 8, 3), (256, 100, 7), (2048, 6, 128), (1024, 768, 100), (16, 33, 45), (64, 256, 32), (256, 128, 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_does_not_depend_on_its_position_or_its_neighbours(shape, dtype) -> None:
    rows, inner, columns = shape
    for _ in range(5):
        left, right = torch.randn(rows, inner, dtype=dtype), torch.randn(inner, columns, dtype=dtype)
        result = exact.matmul(left, right)
        order = torch.randperm(rows)
        assert torch.equal(exact.matmul(left[order], right), result[order])
        others = torch.randn_like(left)
        others[rows // 2] = left[0]
        assert torch.equal(exact.matmul(others, right)[rows // 2], result[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_threads_do_not_matter(shape, dtype) -> None:
    rows, inner, columns = shape
    left, right = torch.randn(rows, inner, dtype=dtype), torch.randn(inner, columns, dtype=dtype)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = exact.matmul(left, right)
        torch.set_num_threads(2)
        assert torch.equal(exact.matmul(left, right), alone)
    finally:
        torch.set_num_threads(threads)


def test_a_library_that_looks_at_the_position_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that sums the last row backwards must fail the probe, and our own loop must take over."""
    true_matmul = torch.matmul

    def crooked(left, right):
        result = true_matmul(left, right)
        result[..., -1, :] = true_matmul(left.flip(-1), right.flip(-2))[..., -1, :]
        return result

    monkeypatch.setattr(torch, "matmul", crooked)
    exact.library_is_ordered.cache_clear()
    try:
        left, right = torch.randn(24, 40), torch.randn(40, 4)
        assert not exact.library_is_ordered(left.shape, right.shape, left.dtype, left.device, (torch.get_num_threads(), "highest"))
        same = left[:1].expand(24, 40)
        result = exact.matmul(same, right)
        assert torch.equal(result, result[:1].expand_as(result))
    finally:
        exact.library_is_ordered.cache_clear()


def test_unaligned_memory_does_not_matter() -> None:
    store = torch.randn(64 * 100 + 1)
    left, right = store[1:].view(64, 100), torch.randn(100, 16)
    assert torch.equal(exact.matmul(left, right), exact.matmul(left.clone(), right))
