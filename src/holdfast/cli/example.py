"""The command `holdfast example`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import AsJson, emit, reporting


def register(app: typer.Typer) -> None:
    app.command()(example)


def example(
    name: Annotated[str, typer.Argument(help="blobs-far, blobs-close, credit-default or credit-scoring.")] = "blobs-far",
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("example"),
    data: Annotated[Path | None, typer.Option(help="Folder of the real tables (default: HOLDFAST_DATA); blobs need none.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write an example (train.csv, queries.csv, schema.toml) for trying the other commands."""
    from ..examples.example import write_example

    with reporting(as_json) as console:
        paths = write_example(name, out, data)
        for path in paths.values():
            console.print(str(path))
        emit({part: str(path) for part, path in paths.items()}, as_json)
