"""The command line: a thin shell over the public names of `holdfast`."""

from . import (
    ask,
    budget,
    card,
    diagnose,
    doctor,
    draft,
    examples,
    plan,
    release,
    simulate,
    train,
)
from .app import app

__all__ = [
    "app",
    "ask",
    "budget",
    "card",
    "diagnose",
    "doctor",
    "draft",
    "examples",
    "plan",
    "release",
    "simulate",
    "train",
]
