"""The command line: a thin shell over the public names of `holdfast`."""

from . import ask, budget, certify, doctor, examples, plan, serve, train
from .app import app

__all__ = ["app", "ask", "budget", "certify", "doctor", "examples", "plan", "serve", "train"]
