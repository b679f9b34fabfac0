"""The command line: a thin shell over the public names of `holdfast`."""

from . import (
    ask,
    budget,
    diagnose,
    doctor,
    draft,
    examples,
    keys,
    plan,
    release,
    serve,
    simulate,
    statement,
    train,
)
from .app import app

__all__ = [
    "app",
    "ask",
    "budget",
    "diagnose",
    "doctor",
    "draft",
    "examples",
    "keys",
    "plan",
    "release",
    "serve",
    "simulate",
    "statement",
    "train",
]
