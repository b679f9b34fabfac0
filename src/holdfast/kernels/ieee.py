"""Check of the floating-point mode, which is set per thread: rounding and denormal numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit

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
