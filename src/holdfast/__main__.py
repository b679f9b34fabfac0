"""python -m holdfast: the command line."""

from .cli import app

app(prog_name="holdfast")
