"""Engines: where the work of training runs, on this machine or on a Ray cluster."""

from .engine import (
    ENGINES,
    Engine,
    Handle,
    LocalEngine,
    LocalHandle,
    Task,
    check_engine,
    local_engine,
    open_engine,
)

__all__ = [
    "ENGINES",
    "Engine",
    "Handle",
    "LocalEngine",
    "LocalHandle",
    "Task",
    "check_engine",
    "local_engine",
    "open_engine",
]
