"""The command line: a thin layer over the package."""

from . import ask, budget, certify, demo, example, plan, reproduce, simulate, statement, train
from .app import app

for module in (demo, example, train, certify, simulate, plan, budget, ask, statement, reproduce):
    module.register(app)

__all__ = ["app"]
