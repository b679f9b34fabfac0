"""What runs in Ray's workers: a task, if the worker's software is that of the driver."""

from __future__ import annotations

import hashlib
import pickle
import platform
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ..errors import EngineUnavailable
from ..kernels import require_ieee
from ..version import __version__

Software = dict[str, str]


@cache
def software() -> Software:
    """Return the versions of everything that decides the bits of a result."""
    found = {name: version(name) for name in ("numba", "numpy", "torch")}
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        code.update(path.read_bytes())
    return {
        "holdfast": f"{__version__} with code {code.hexdigest()[:12]}",
        "python": platform.python_version(),
        **found,
    }


def run_task(expected: Software, function: Callable[..., Any], *arguments: Any) -> bytes:
    """Return the pickled result of a function, computed in one thread.

    Raises:
        EngineUnavailable: If this worker has other versions than the driver.
        UnsoundBounds: If the float mode is not that of IEEE arithmetic.
    """
    here = software()
    if here != expected:
        name = next(name for name in expected if here[name] != expected[name])
        raise EngineUnavailable(
            f"a Ray worker has {name} {here[name]}, but this process has {expected[name]}: install "
            "the same versions on all nodes"
        )
    torch.set_num_threads(1)
    require_ieee()
    return pickle.dumps(function(*arguments, None), protocol=5)
