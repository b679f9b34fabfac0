"""Runs the command line with `python -m holdfast`."""

from .cli import app

app(prog_name="holdfast")
