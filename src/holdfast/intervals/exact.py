"""Matrix products of plain numbers whose executed sums carry the proof.

The proof needs two things of `a @ b`: a row's result does not depend on the row's position, on the other rows, or on
its place in a stack; and the result is monotone for operands of known sign. Any product that adds in an order fixed
by the shapes has both. Libraries promise neither and sometimes fail: MKL's float64 product of (4096, 8) with (8, 3)
depends on the row's position. So each new shape is probed once, on random numbers (never on records): where the
library passes, it is used; elsewhere our own loop adds one term after the other.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from .. import kernels

_ALIGNMENT = 64  # bytes: libraries may pick another kernel, and another order, for unaligned memory
_PROBES = 32


def matmul(left: Float[Tensor, "*stack rows inner"], right: Float[Tensor, "*stack inner columns"]) -> Float[Tensor, "*stack rows columns"]:
    """`left @ right` of matrices, or of stacks of as many matrices.

    Guarantees
    ----------
    Every entry is summed in an order that depends on the shapes only.
    """
    left, right = _aligned(left), _aligned(right)
    settings = (torch.get_num_threads(), torch.get_float32_matmul_precision())
    if library_is_ordered(left.shape, right.shape, left.dtype, left.device, settings):
        return torch.matmul(left, right)
    return kernels.ordered_matmul(left, right)


def _aligned(matrix: Tensor) -> Tensor:
    if matrix.is_contiguous() and matrix.data_ptr() % _ALIGNMENT == 0:
        return matrix
    return matrix.clone(memory_format=torch.contiguous_format)


@lru_cache(maxsize=4096)
def library_is_ordered(left: torch.Size, right: torch.Size, dtype: torch.dtype, device: torch.device, settings: tuple[int, str]) -> bool:
    """Whether torch's product of these shapes passes the probe: public numbers in, the same answer every time.

    Each draw puts one row everywhere, and one matrix all over the stack, so that all rows of the result must agree. A
    product that fails was never seen to pass a draw with a chance above two thirds, so 32 draws miss it with 3e-6.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype).to(device)

    for _ in range(_PROBES):
        rows = draw(left[-1]).expand(left).contiguous()
        result = torch.matmul(rows, draw(*right[-2:]).expand(right).contiguous()).reshape(-1, right[-1])
        if not torch.equal(result, result[:1].expand_as(result)):
            return False
    a, b = draw(*left).abs(), draw(*right).abs()
    alone = torch.zeros_like(a)
    alone[..., -1, :] = a[..., -1, :]
    result = torch.matmul(a, b)
    independent = torch.equal(torch.matmul(alone, b)[..., -1, :], result[..., -1, :])
    larger = torch.matmul(a, torch.nextafter(b, torch.full_like(b, torch.inf)))
    return independent and bool((larger >= result).all())
