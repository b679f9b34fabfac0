"""Generates the reference of all commands (docs/cli.md) from their help texts: make reference."""

from __future__ import annotations

import typer
from typer.cli import get_docs_for_click
from typer.main import get_command

from . import app


def reference() -> str:
    command = get_command(app)
    context = typer.Context(command, info_name="holdfast")
    return f"{get_docs_for_click(obj=command, ctx=context, name='holdfast', title='Command line').strip()}\n"


if __name__ == "__main__":
    typer.echo(reference(), nl=False)
