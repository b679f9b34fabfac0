"""Engines by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import InvalidInput
from .engine import Engine, local_engine

ENGINES = ("local", "ray")


def check_engine(name: Any) -> str:
    """Return the name of an engine; raise InvalidInput for any other."""
    if name not in ENGINES:
        raise InvalidInput(f"engine={name!r}: expected 'local' or 'ray'")
    return str(name)


@contextmanager
def open_engine(name: str) -> Iterator[Engine]:
    """Start the engine of a name, and end it afterwards.

    Raises:
        InvalidInput: If there is no such engine, or Ray is not installed.
        EngineUnavailable: If Ray cannot be started or reached.
        UnsoundBounds: If the float mode of a thread is not that of IEEE arithmetic.
    """
    if check_engine(name) == "local":
        with local_engine() as local:
            yield local
        return
    from .ray_engine import ray_engine  # Ray is optional, and its import takes seconds

    with ray_engine() as cluster:
        yield cluster
