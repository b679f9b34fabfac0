"""Work on intervals in one pass: slopes, crossed ends, and rows whose numbers outgrew the floats."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor


@njit(nogil=True, cache=True)
def _any_crossed(lower, upper):
    crossed = 0
    for i in range(lower.shape[0]):
        crossed |= int(lower[i] > upper[i])
    return crossed != 0


@njit(nogil=True, cache=True)
def _contain(lower, upper, low, high, finite):
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


def slope_product(slope_low: Tensor, slope_high: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply by a slope that is not negative, entry by entry: two of the four products decide each end."""
    if lower.device.type != "cpu":
        low = torch.minimum(slope_low * lower, slope_high * lower)
        return low, torch.maximum(slope_low * upper, slope_high * upper)
    ends = [end.contiguous().view(-1).numpy() for end in (slope_low, slope_high, lower, upper)]
    low_end, high_end = np.empty_like(ends[0]), np.empty_like(ends[0])
    _slope_product(*ends, low_end, high_end)
    return torch.from_numpy(low_end).view(lower.shape), torch.from_numpy(high_end).view(lower.shape)


def any_crossed(lower: Tensor, upper: Tensor) -> bool:
    """Whether a lower end lies above its upper end; comparisons with NaN are false."""
    if lower.device.type == "cpu" and lower.is_contiguous() and upper.is_contiguous() and lower.is_floating_point():
        return bool(_any_crossed(lower.view(-1).numpy(), upper.view(-1).numpy()))
    return bool((lower > upper).any())


def contain(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Set rows with infinite or NaN ends to 0, with the same work for every row; which rows were finite.

    A lower end of +infinity has an upper end of +infinity or NaN, so each end is compared with the one
    infinity that only it can have.
    """
    if lower.device.type != "cpu" or not lower.numel():
        finite = (lower.flatten(1) > -torch.inf).all(1) & (upper.flatten(1) < torch.inf).all(1)
        keep = finite.view(-1, *(1,) * (lower.dim() - 1))
        return torch.where(keep, lower, 0.0), torch.where(keep, upper, 0.0), finite
    ends = [end.contiguous().view(len(end), -1).numpy() for end in (lower, upper)]
    low, high = np.empty_like(ends[0]), np.empty_like(ends[1])
    rows = np.empty(len(low), np.bool_)
    _contain(*ends, low, high, rows)
    return torch.from_numpy(low).view(lower.shape), torch.from_numpy(high).view(upper.shape), torch.from_numpy(rows)
