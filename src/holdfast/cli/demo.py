"""The command `holdfast demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import AsJson, emit, reporting


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("out"),
    max_distance: Annotated[int, typer.Option(min=1, help="Certify every distance from 1 to this.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Train on the paper's blobs, and map how many records can change without changing a label."""
    from ..examples import demo as experiment

    with reporting(as_json) as console:
        emit(experiment.run(out, console, max_distance), as_json)
