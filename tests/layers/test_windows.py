"""Patches, folds and pooling by index tables equal torch, and their backward is the transpose."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from holdfast.intervals import Interval, OperandKind
from holdfast.layers.windows import EMPTY, AveragePool, Convolution, gather_sum, transpose

sizes = st.integers(1, 9)
pairs = st.tuples(st.integers(1, 4), st.integers(1, 4))


def _layer_against_torch(layer, module: nn.Module, shape: tuple[int, ...]) -> None:
    """Compare a layer's forward and backward passes on points with torch and autograd."""
    x = torch.randn(3, *shape, dtype=torch.float64, requires_grad=True)
    y = module(x)
    box = {name: Interval.point(value.detach()) for name, value in module.named_parameters()}
    ours = layer.forward(Interval.point(x.detach()), box).lower
    assert torch.allclose(ours, y.detach(), atol=1e-12)
    d = torch.randn_like(y)
    (wanted,) = torch.autograd.grad(y, x, d)
    assert torch.allclose(
        layer.backward(Interval.point(x.detach()), box, Interval.point(d)).lower, wanted, atol=1e-12
    )


@settings(max_examples=80, deadline=None)
@given(
    size=st.tuples(sizes, sizes),
    kernel=pairs,
    stride=pairs,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    ceil_mode=st.booleans(),
    count_include_pad=st.booleans(),
    divisor=st.sampled_from([None, 1, 5]),
)
def test_average_pooling(
    size, kernel, stride, padding, ceil_mode, count_include_pad, divisor
) -> None:
    assume(all(2 * p <= k for p, k in zip(padding, kernel, strict=True)))
    assume(all(s + 2 * p >= k for s, p, k in zip(size, padding, kernel, strict=True)))
    module = nn.AvgPool2d(kernel, stride, padding, ceil_mode, count_include_pad, divisor)
    _layer_against_torch(
        AveragePool.build("", module, OperandKind.POINT, (2, *size)), module, (2, *size)
    )


@settings(max_examples=40, deadline=None)
@given(
    size=st.tuples(sizes, sizes),
    result=st.tuples(st.one_of(st.none(), sizes), st.one_of(st.none(), sizes)),
)
def test_adaptive_pooling(size, result) -> None:
    module = nn.AdaptiveAvgPool2d(result)
    _layer_against_torch(
        AveragePool.build("", module, OperandKind.POINT, (2, *size)), module, (2, *size)
    )


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # warned for even kernels
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.tuples(sizes, sizes),
    channels=st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 3, 1), (4, 6, 2), (3, 3, 3)]),
    kernel=pairs,
    stride=pairs,
    padding=st.one_of(st.tuples(st.integers(0, 2), st.integers(0, 2)), st.just("same")),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
def test_convolution(seed, size, channels, kernel, stride, padding, dilation) -> None:
    stride = (1, 1) if padding == "same" else stride
    inputs, outputs, groups = channels
    free = [
        s + 2 * (0 if padding == "same" else padding[i]) - dilation[i] * (kernel[i] - 1)
        for i, s in enumerate(size)
    ]
    assume(padding == "same" or min(free) > 0)
    torch.manual_seed(seed)
    module = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups).double()
    _layer_against_torch(
        Convolution.build("", module, OperandKind.POINT, (inputs, *size)), module, (inputs, *size)
    )


def test_the_order_of_a_sum_is_that_of_the_table() -> None:
    """Terms are added in the table's order.

    1 + 2^-60 - 1 is 0 in one order and 2^-60 in the other.
    """
    values = torch.tensor([[1.0, 2.0**-60, -1.0]], dtype=torch.float64)
    tables = torch.tensor([[0, 0], [1, 2], [2, 1], [EMPTY, EMPTY]])
    assert gather_sum(values, tables).tolist() == [[0.0, 2.0**-60]]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    terms=st.integers(1, 5),
    outputs=st.integers(1, 6),
    cells=st.integers(1, 7),
)
def test_the_transposed_table_is_the_transposed_matrix(seed, terms, outputs, cells) -> None:
    """The transposed table is the transposed matrix.

    The outputs that use a cell are listed in ascending order.
    """
    generator = torch.Generator().manual_seed(seed)
    table = torch.stack(
        [torch.randperm(cells + terms, generator=generator)[:terms] for _ in range(outputs)], 1
    )
    table = torch.where(table < cells, table, EMPTY)
    turned = transpose(table, cells)
    matrix, other = gather_sum(torch.eye(cells), table), gather_sum(torch.eye(outputs), turned)
    assert torch.equal(matrix, other.T)
    for cell in range(cells):
        entered = [int(output) for output in turned[:, cell] if output != EMPTY]
        assert entered == sorted(entered)


@pytest.mark.parametrize("padding", [0, 1])
def test_patches_are_copies(padding: int) -> None:
    module = nn.Conv2d(2, 3, (2, 3), (2, 1), padding)
    layer = Convolution.build("", module, OperandKind.POINT, (2, 5, 6))
    x = torch.randn(4, 2, 5, 6)
    (patches,) = layer._patches(Interval.point(x))
    assert torch.equal(patches.lower, F.unfold(x, (2, 3), stride=(2, 1), padding=padding))
