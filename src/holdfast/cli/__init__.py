"""The command line: a thin shell over `holdfast`, which it reaches through its public names
alone.
"""

from . import ask, budget, examples, simulate, train
from .app import app

__all__ = ["app", "ask", "budget", "examples", "simulate", "train"]
