"""Examples: the paper's blobs, example tables as files, and the demo."""

from .demo import run_demo
from .tables import write_example

__all__ = ["run_demo", "write_example"]
