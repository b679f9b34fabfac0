"""The command line: a thin shell over the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .errors import HoldfastError
from .version import __version__

app = typer.Typer(no_args_is_help=True, add_completion=True, help="Predictions that hold fast when people come and go.")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    """Certified training and private prediction."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("out"),
    max_distance: Annotated[int, typer.Option(min=1, help="Certify every distance from 1 to this.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON and nothing else.")] = False,
) -> None:
    """Train on the paper's blobs and map how many records would have to change to change a label."""
    from .experiments import demo as experiment

    try:
        figures = experiment.run(out, Console(quiet=as_json), max_distance)
    except (HoldfastError, OSError) as error:
        typer.echo(f"holdfast: {error}", err=True)
        raise typer.Exit(2) from error
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
