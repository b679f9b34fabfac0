"""Interval matrix products with one fixed order of sums, passes over rows, and the float mode.

Each entry of a product is a sum over the inner index, added up in the order of that index, whatever
the row, the number of rows, the block, the strides, the alignment or the thread. Vectors run over
the columns or the rows of the result, never over the inner index. No fastmath: a product is
rounded, then the sum, on every machine, so the bits are the same everywhere
(docs/theory/floating-point.md).

The term of two intervals [a, b] and [c, d] is the smallest and the largest of a*c, a*d, b*c, b*d.
If one factor is a point, or the other one is not negative, signs tell which products these are, and
the loop multiplies half as often. That changes no bit: the products that are left out are never
smaller or larger than those that are computed, and sums that begin at +0 never become -0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from ..errors import UnsoundBounds


@njit(nogil=True, cache=True)
def _loop_product_sum(left, right, addend):
    return left * right, left + addend


def _torch_product_sum(
    left: np.ndarray, right: np.ndarray, addend: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    a, b, c = (torch.from_numpy(array) for array in (left, right, addend))
    return (a * b).numpy(), (a + c).numpy()


def _probe(kind: type) -> tuple[Any, ...]:
    """Return numbers whose products and sums tell the mode, and the right sums."""
    about = np.finfo(kind)
    last = float(about.eps)
    parts: Any = np.array([0.5 * last, 0.75 * last, -0.125 * last, -0.375 * last], kind)
    wanted: Any = np.array([1.0, 1.0 + last, 1.0, 1.0 - last / 2], kind)
    values: list[Any] = [np.full(16, value, kind) for value in (about.tiny, 0.5, 1.0)]
    return kind, *values, np.tile(parts, 4), np.tile(wanted, 4)


_PROBES = (_probe(np.float32), _probe(np.float64))


def require_ieee() -> None:
    """Raise unless this thread rounds to nearest and keeps denormal numbers.

    Both torch and the compiled loops are checked.

    Raises:
        UnsoundBounds: If another mode is set. Two threads in different modes would compute two
            different gradients for one record, and boxes of neighbouring data sets would not nest.
    """
    for kind, tiny, half, one, parts, wanted in _PROBES:
        for where, run in (("torch", _torch_product_sum), ("compiled loops", _loop_product_sum)):
            if not (run(tiny, half, half)[0] > 0).all():
                raise UnsoundBounds(_message(where, kind, "sets denormal numbers to 0"))
            if not (run(one, half, parts)[1] == wanted).all():
                raise UnsoundBounds(_message(where, kind, "does not round to nearest"))


def _message(where: str, kind: type, finding: str) -> str:
    return (
        f"this thread {finding} ({where}, {np.dtype(kind)}): certificates need default IEEE "
        "arithmetic; call torch.set_flush_denormal(False), "
        "and restart the process if threads were already running"
    )


_LANES = 8  # columns are padded to a multiple of this, so that vectorised loops have no remainder
_ROW_TILE = 64  # rows whose sums stay in the L1 cache while the inner index advances
_NARROW = 8  # results with fewer columns are computed transposed, if they have more rows


@njit(nogil=True, cache=True)
def _add_signed(factors, upper, vectors, totals):
    """Add factor times vector to every row of `totals`, for one end of a matrix product.

    `vectors` (2, inner, columns) holds lower and upper ends; the sign of a factor selects one.
    """
    rows, inner = factors.shape
    columns = totals.shape[1]
    eights = inner - inner % 8
    for start in range(0, rows, _ROW_TILE):
        stop = min(start + _ROW_TILE, rows)
        for i in range(0, eights, 8):
            for row in range(start, stop):
                total = totals[row]
                a0, a1, a2, a3 = (
                    factors[row, i],
                    factors[row, i + 1],
                    factors[row, i + 2],
                    factors[row, i + 3],
                )
                a4, a5, a6, a7 = (
                    factors[row, i + 4],
                    factors[row, i + 5],
                    factors[row, i + 6],
                    factors[row, i + 7],
                )
                v0 = vectors[int((a0 < 0) != upper), i]
                v1 = vectors[int((a1 < 0) != upper), i + 1]
                v2 = vectors[int((a2 < 0) != upper), i + 2]
                v3 = vectors[int((a3 < 0) != upper), i + 3]
                v4 = vectors[int((a4 < 0) != upper), i + 4]
                v5 = vectors[int((a5 < 0) != upper), i + 5]
                v6 = vectors[int((a6 < 0) != upper), i + 6]
                v7 = vectors[int((a7 < 0) != upper), i + 7]
                for j in range(columns):
                    half = (((total[j] + a0 * v0[j]) + a1 * v1[j]) + a2 * v2[j]) + a3 * v3[j]
                    total[j] = (((half + a4 * v4[j]) + a5 * v5[j]) + a6 * v6[j]) + a7 * v7[j]
        for i in range(eights, inner):
            for row in range(start, stop):
                total, a = totals[row], factors[row, i]
                v = vectors[int((a < 0) != upper), i]
                for j in range(columns):
                    total[j] += a * v[j]


@njit(nogil=True, cache=True)
def _signed_product(factors_low, factors_high, vectors, low, high):
    """Multiply factors [a, b] by vectors [c, d], provided that a = b or c >= 0."""
    for matrix in range(factors_low.shape[0]):
        _add_signed(factors_low[matrix], False, vectors[matrix], low[matrix])
        _add_signed(factors_high[matrix], True, vectors[matrix], high[matrix])


@njit(nogil=True, cache=True)
def _extreme_product(factors_low, factors_high, vectors, low, high):
    """Multiply any factors by any vectors; `vectors` with one end only are points."""
    stack, rows, inner = factors_low.shape
    point = vectors.shape[1] == 1
    for matrix in range(stack):
        for row in range(rows):
            sums_low, sums_high = low[matrix, row], high[matrix, row]
            for i in range(inner):
                a, b = factors_low[matrix, row, i], factors_high[matrix, row, i]
                c = vectors[matrix, 0, i]
                if point:
                    for j in range(c.shape[0]):
                        ac, bc = a * c[j], b * c[j]
                        sums_low[j] += min(ac, bc)
                        sums_high[j] += max(ac, bc)
                else:
                    d = vectors[matrix, 1, i]
                    for j in range(c.shape[0]):
                        ac, ad, bc, bd = a * c[j], a * d[j], b * c[j], b * d[j]
                        sums_low[j] += min(min(ac, ad), min(bc, bd))
                        sums_high[j] += max(max(ac, ad), max(bc, bd))


def interval_product(
    left_low: Tensor,
    left_high: Tensor,
    right_low: Tensor,
    right_high: Tensor,
    left_nonnegative: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the lower and upper end of the product of two interval matrices, or stacks of them.

    `left_nonnegative` promises `left_low` >= 0. It affects the speed, not the result.

    Guarantees:
        Each entry is the sum, in the order of the inner index and starting at +0, of the smallest
        (largest) of the four products of ends.
    """
    left, right = _ends(left_low, left_high), _ends(right_low, right_high)
    rows, columns = left_low.shape[-2], right_low.shape[-1]
    if columns < _NARROW and columns < rows:  # transposed: the right operand gives the factors
        left, right = [end.transpose(1, 2) for end in right], [end.transpose(1, 2) for end in left]
        signed = left_nonnegative and len(right) == 2
        low, high = (end.transpose(1, 2) for end in _product(left, right, signed))
    else:
        low, high = _product(left, right, signed=len(left) == 1)
    shape = (*left_low.shape[:-1], columns)
    return low[:, :rows, :columns].reshape(shape), high[:, :rows, :columns].reshape(shape)


def _ends(low: Tensor, high: Tensor) -> list[Tensor]:
    """Return the ends as stacks of matrices, only one of them if the interval is a point."""
    ends = [low] if high is low else [low, high]
    return [end if end.dim() == 3 else end[None] for end in ends]


def _product(left: list[Tensor], right: list[Tensor], signed: bool) -> tuple[Tensor, Tensor]:
    """Return the product, with columns zero-padded to a multiple of `_LANES`."""
    factors = [end.contiguous().numpy() for end in (left[0], left[-1])]
    stack, inner, columns = right[0].shape
    width = -(-columns // _LANES) * _LANES
    vectors = torch.zeros(stack, 2 if signed else len(right), inner, width, dtype=left[0].dtype)
    for end in range(vectors.shape[1]):
        vectors[:, end, :, :columns] = right[min(end, len(right) - 1)]
    low = np.zeros((stack, factors[0].shape[1], width), factors[0].dtype)
    high = np.zeros_like(low)
    (_signed_product if signed else _extreme_product)(*factors, vectors.numpy(), low, high)
    return torch.from_numpy(low), torch.from_numpy(high)


@njit(nogil=True, cache=True)
def _any_crossed(lower, upper):
    crossed = 0
    for i in range(lower.shape[0]):
        crossed |= int(lower[i] > upper[i])
    return crossed != 0


@njit(nogil=True, cache=True)
def _zero_overflowed_rows(lower, upper, low, high, finite):
    zero = lower.dtype.type(0)
    for row in range(lower.shape[0]):
        broken = 0
        for j in range(lower.shape[1]):
            broken |= int(not (lower[row, j] > -np.inf)) | int(not (upper[row, j] < np.inf))
        finite[row] = broken == 0
        for j in range(lower.shape[1]):
            low[row, j] = zero if broken else lower[row, j]
            high[row, j] = zero if broken else upper[row, j]


@njit(nogil=True, cache=True)
def _slope_product(slope_low, slope_high, lower, upper, low, high):
    for i in range(lower.shape[0]):
        low[i] = min(slope_low[i] * lower[i], slope_high[i] * lower[i])
        high[i] = max(slope_low[i] * upper[i], slope_high[i] * upper[i])


def slope_product(
    slope_low: Tensor, slope_high: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor]:
    """Multiply an interval by a nonnegative slope interval, element by element.

    Two of the four products determine each end.
    """
    if lower.device.type != "cpu":
        low = torch.minimum(slope_low * lower, slope_high * lower)
        return low, torch.maximum(slope_low * upper, slope_high * upper)
    ends = [end.contiguous().view(-1).numpy() for end in (slope_low, slope_high, lower, upper)]
    low_end, high_end = np.empty_like(ends[0]), np.empty_like(ends[0])
    _slope_product(*ends, low_end, high_end)
    return torch.from_numpy(low_end).view(lower.shape), torch.from_numpy(high_end).view(lower.shape)


def any_crossed(lower: Tensor, upper: Tensor) -> bool:
    """Return whether a lower end lies above its upper end; comparisons with NaN are false."""
    if (
        lower.device.type == "cpu"
        and lower.is_contiguous()
        and upper.is_contiguous()
        and lower.is_floating_point()
    ):
        return bool(_any_crossed(lower.view(-1).numpy(), upper.view(-1).numpy()))
    return bool((lower > upper).any())


def zero_overflowed_rows(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Set rows with infinite or NaN ends to 0, and also return which rows were finite.

    The work is the same for every row. A lower end of +infinity has an upper end of +infinity or
    NaN, so it is enough to compare each end with the one infinity that only it can have.
    """
    if lower.device.type != "cpu" or not lower.numel():
        finite = (lower.flatten(1) > -torch.inf).all(1) & (upper.flatten(1) < torch.inf).all(1)
        keep = finite.view(-1, *(1,) * (lower.dim() - 1))
        return torch.where(keep, lower, 0.0), torch.where(keep, upper, 0.0), finite
    ends = [end.contiguous().view(len(end), -1).numpy() for end in (lower, upper)]
    low, high = np.empty_like(ends[0]), np.empty_like(ends[1])
    rows = np.empty(len(low), np.bool_)
    _zero_overflowed_rows(*ends, low, high, rows)
    return (
        torch.from_numpy(low).view(lower.shape),
        torch.from_numpy(high).view(upper.shape),
        torch.from_numpy(rows),
    )
