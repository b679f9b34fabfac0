"""The command line: a thin shell over the package."""

from . import certify, demo, example, plan, simulate, train
from .app import app

for module in (demo, example, train, certify, simulate, plan):
    module.register(app)

__all__ = ["app"]
