"""The command line: a thin shell over the public names of `holdfast`."""

from . import ask, budget, diagnose, examples, plan, release, simulate, train
from .app import app

__all__ = ["app", "ask", "budget", "diagnose", "examples", "plan", "release", "simulate", "train"]
