"""exp, sigmoid, tanh and softplus that are increasing to the last bit, by construction.

Library versions are accurate but need not be monotone, and nesting needs monotone (docs/theory/floating-point.md).
Each function here is a composition of steps that are monotone as executed: IEEE additions, products and quotients of
operands with a known sign, `floor`, and a polynomial with nonnegative coefficients at a nonnegative argument. At the
seam between two cells of a table the value is capped by the next cell's first value.
All arithmetic is in float64; the result is rounded once to the argument's type.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

_CELLS = 256
_EXP_LIMIT = 700.0  # exp(700) is finite in float64, exp(-700) is still normal
_EXP_TABLE = torch.tensor([2.0 ** (i / _CELLS) for i in range(_CELLS + 1)], dtype=torch.float64)
_TAYLOR = [1.0 / math.factorial(i) for i in range(6)]

_SOFTPLUS_LIMIT = 40.0  # beyond it softplus(x) is x, or 0, to the last bit of float32 and to 4e-18
_SOFTPLUS_CELLS = 1024  # per unit


def _softplus_table() -> Tensor:
    start = np.arange(-_SOFTPLUS_LIMIT, _SOFTPLUS_LIMIT + 0.5 / _SOFTPLUS_CELLS, 1.0 / _SOFTPLUS_CELLS)
    value = np.logaddexp(0.0, start)
    slope = 1.0 / (1.0 + np.exp(-start))
    return torch.from_numpy(np.stack([value, slope, slope * (1.0 - slope) / 2.0]))


_SOFTPLUS_TABLE = _softplus_table()


def _exp64(x: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """exp in float64 for |x| <= 700 (clamped beyond): 2^whole * 2^(cell/256) * e^rest, rest in [0, ln2/256)."""
    scaled = x.clamp(-_EXP_LIMIT, _EXP_LIMIT) * (_CELLS / math.log(2.0))
    floor = scaled.floor()
    rest = (scaled - floor) * (math.log(2.0) / _CELLS)
    index = floor.long()
    cell = index.remainder(_CELLS)
    whole = (index - cell).div(_CELLS, rounding_mode="floor")
    polynomial = torch.full_like(rest, _TAYLOR[-1])
    for coefficient in reversed(_TAYLOR[:-1]):
        polynomial = polynomial * rest + coefficient
    table = _EXP_TABLE.to(x.device)
    mantissa = torch.minimum(table[cell] * polynomial, table[cell + 1])
    return torch.ldexp(mantissa, whole)


def exp(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """e^x, with x clamped to [-700, 700] first."""
    return _exp64(x.double()).to(x.dtype)


def sigmoid(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """1 / (1 + e^-x)."""
    return (1.0 / (1.0 + _exp64(-x.double()))).to(x.dtype)


def tanh(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """(1 - e) / (1 + e) with e = e^(-2|x|), and the sign of x: odd, and increasing because the quotient falls in e."""
    magnitude = _exp64(-2.0 * x.double().abs())
    return torch.copysign((1.0 - magnitude) / (1.0 + magnitude), x.double()).to(x.dtype)


def softplus(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """log(1 + e^x) by a table of second-order expansions (absolute error below 2e-11)."""
    inside = x.double().clamp(-_SOFTPLUS_LIMIT, _SOFTPLUS_LIMIT)
    scaled = (inside + _SOFTPLUS_LIMIT) * _SOFTPLUS_CELLS
    index = scaled.floor().long().clamp(max=_SOFTPLUS_TABLE.shape[1] - 2)
    rest = (scaled - index) * (1.0 / _SOFTPLUS_CELLS)
    value, slope, curve = _SOFTPLUS_TABLE.to(x.device)
    result = value[index] + rest * (slope[index] + rest * curve[index])
    result = torch.minimum(result, value[index + 1])
    beyond = x.double() > _SOFTPLUS_LIMIT
    return torch.where(beyond, torch.maximum(x.double(), result), result).to(x.dtype)
