"""exp, sigmoid, tanh and softplus that are increasing to the last bit, by construction.

Library versions are accurate but need not be monotone, and nesting requires monotone functions
(docs/theory/floating-point.md). Each function here is a composition of steps that are monotone as
executed: IEEE additions, products and quotients of operands with a known sign, `floor`, and a
polynomial with nonnegative coefficients at a nonnegative argument. At the boundary between two
cells of a table, the value is capped by the next cell's first value.

All arithmetic is in float64; the result is rounded once to the argument's type. Tables are computed
with additions, products, quotients and decimal arithmetic only, so that they are the same on every
machine.
"""

from __future__ import annotations

from decimal import Context, Decimal

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

_LN2 = 0.6931471805599453
_CELLS = 256
_EXP_LIMIT = 700.0  # exp(700) is finite in float64, exp(-700) is still normal
_EXPONENT_BIAS, _MANTISSA_BITS = 1023, 52  # of float64
_TAYLOR = (1.0, 1.0, 1.0 / 2.0, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0)

# Above the limit, softplus(x) is x to the last bit of float32; below its negative, it is 0 to
# within 5e-18.
_SOFTPLUS_LIMIT = 40.0
_SOFTPLUS_CELLS = 1024  # per unit
_LOG_TERMS = 20  # in the series of log(1 + e): the remainder is below 1e-20


def _exp_table() -> Tensor:
    """Return 2^(i/256) for i = 0..256, each the float64 nearest to a value with 40 digits."""
    context = Context(prec=40)
    powers = [
        context.power(2, context.divide(Decimal(i), Decimal(_CELLS))) for i in range(_CELLS + 1)
    ]
    return torch.tensor([float(power) for power in powers], dtype=torch.float64)


_EXP_TABLE = _exp_table()


def _power_of_two(exponent: Int64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """Return 2^exponent for -1022 <= exponent <= 1023.

    It is assembled from bits, because a library's power may be off in the last one.
    """
    return ((exponent + _EXPONENT_BIAS) << _MANTISSA_BITS).view(torch.float64)


def _exp64(x: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """Return exp(x) in float64, with x clamped to [-700, 700].

    exp(x) = 2^whole * 2^(cell/256) * e^rest, with rest in [0, ln2/256).
    """
    scaled = x.clamp(-_EXP_LIMIT, _EXP_LIMIT) * (_CELLS / _LN2)
    floor = scaled.floor()
    rest = (scaled - floor) * (_LN2 / _CELLS)
    index = floor.long()
    cell = index.remainder(_CELLS)
    whole = (index - cell).div(_CELLS, rounding_mode="floor")
    polynomial = torch.full_like(rest, _TAYLOR[-1])
    for coefficient in reversed(_TAYLOR[:-1]):
        polynomial = polynomial * rest + coefficient
    table = _EXP_TABLE.to(x.device)
    mantissa = torch.minimum(table[cell] * polynomial, table[cell + 1])
    return mantissa * _power_of_two(whole)


def _softplus_table() -> Tensor:
    """Return value, slope and half the curvature of log(1 + e^x) at the start of every cell.

    With e = e^-|x| and z = e / (2 + e): log(1 + e^x) = max(x, 0) + 2 (z + z^3/3 + z^5/5 + ...).
    """
    count = int(2 * _SOFTPLUS_LIMIT * _SOFTPLUS_CELLS) + 1
    start = torch.arange(count, dtype=torch.float64) / _SOFTPLUS_CELLS - _SOFTPLUS_LIMIT
    small = _exp64(-start.abs())
    z = small / (2.0 + small)
    series = torch.zeros_like(z)
    for term in reversed(range(_LOG_TERMS)):
        series = series * (z * z) + 1.0 / (2 * term + 1)
    slope = 1.0 / (1.0 + _exp64(-start))
    return torch.stack(
        [start.clamp(min=0.0) + 2.0 * (z * series), slope, slope * (1.0 - slope) / 2.0]
    )


_SOFTPLUS_TABLE = _softplus_table()


def exp(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return e^x, with x clamped to [-700, 700] first."""
    return _exp64(x.double()).to(x.dtype)


def sigmoid(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return 1 / (1 + e^-x)."""
    return (1.0 / (1.0 + _exp64(-x.double()))).to(x.dtype)


def tanh(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return (1 - e) / (1 + e) with e = e^(-2|x|) and the sign of x.

    The result is odd, and it is increasing because the quotient decreases in e.
    """
    magnitude = _exp64(-2.0 * x.double().abs())
    return torch.copysign((1.0 - magnitude) / (1.0 + magnitude), x.double()).to(x.dtype)


def softplus(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return log(1 + e^x) from a table of second-order expansions (absolute error below 2e-11)."""
    inside = x.double().clamp(-_SOFTPLUS_LIMIT, _SOFTPLUS_LIMIT)
    scaled = (inside + _SOFTPLUS_LIMIT) * _SOFTPLUS_CELLS
    # NaN gets some valid index, and stays NaN because of `rest`.
    index = scaled.floor().long().clamp(0, _SOFTPLUS_TABLE.shape[1] - 2)
    rest = (scaled - index) * (1.0 / _SOFTPLUS_CELLS)
    value, slope, curve = _SOFTPLUS_TABLE.to(x.device)
    result = value[index] + rest * (slope[index] + rest * curve[index])
    result = torch.minimum(result, value[index + 1])
    beyond = x.double() > _SOFTPLUS_LIMIT
    return torch.where(beyond, torch.maximum(x.double(), result), result).to(x.dtype)
