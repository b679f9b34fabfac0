"""torch's matrix product, used only where it has been seen to carry the proof.

The proof needs two things of `a @ b`: a row's result does not depend on the row's position, on the other rows, or on
its place in a stack; and the result is monotone for operands of known sign. Any product that adds in an order fixed
by the shapes has both. Libraries promise neither, so each new shape is probed once, on random numbers (never on
records), and an error is raised where a probe fails.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ..errors import UnsoundBounds

_ALIGNMENT = 64  # bytes: libraries may pick another kernel, and another order, for unaligned memory


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right`, adding in an order that depends on the shapes only; raises UnsoundBounds where that is in doubt."""
    _probe(left.shape, right.shape, left.dtype, left.device, torch.get_num_threads())
    return torch.matmul(_aligned(left), _aligned(right))


def _aligned(matrix: Tensor) -> Tensor:
    if matrix.is_contiguous() and matrix.data_ptr() % _ALIGNMENT == 0:
        return matrix
    return matrix.clone(memory_format=torch.contiguous_format)


@lru_cache(maxsize=4096)
def _probe(left: torch.Size, right: torch.Size, dtype: torch.dtype, device: torch.device, threads: int) -> None:
    """Raise UnsoundBounds unless the product of these shapes is position-independent and monotone on random numbers."""
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(left, generator=generator, dtype=dtype).to(device)
    b = torch.rand(right, generator=generator, dtype=dtype).to(device)
    result = torch.matmul(a, b)
    alone = torch.zeros_like(a)
    alone[..., -1, :] = a[..., -1, :]
    failed = None
    if not torch.equal(torch.matmul(a.flip(-2), b), result.flip(-2)):
        failed = "a row's result depends on its position"
    elif not torch.equal(torch.matmul(alone, b)[..., -1, :], result[..., -1, :]):
        failed = "a row's result depends on the other rows"
    elif len(left) == len(right) == 3 and not torch.equal(torch.matmul(a.flip(0), b.flip(0)), result.flip(0)):
        failed = "a matrix's result depends on its place in the stack"
    elif not bool((torch.matmul(a, torch.nextafter(b, torch.full_like(b, 2.0))) >= result).all()):
        failed = "the product is not monotone"
    if failed:
        raise UnsoundBounds(
            f"the matrix product of this machine cannot carry a certificate: {failed} "
            f"(shapes {tuple(left)} x {tuple(right)}, {dtype}, {device}, {threads} threads); "
            "try torch.set_num_threads(1) or another build of torch"
        )
