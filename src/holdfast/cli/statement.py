"""The commands `holdfast statement` and `holdfast card`: what may be said about a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import holdfast as hf

from .app import DEFAULT_LEDGER, LedgerAddress, app, command_context, refuse_output

Model = Annotated[
    Path, typer.Argument(help="A model saved by `holdfast train` or `holdfast release`.")
]
Out = Annotated[
    Path | None, typer.Option(help="The .md file to write; standard output if not given.")
]


@app.command()
def statement(model: Model, out: Out = None, ledger: LedgerAddress = DEFAULT_LEDGER) -> None:
    """Write the privacy statement of a model's answers, or of a released head, in Markdown.

    It says what is promised, what was declared public, and what is not protected.
    """
    with command_context(False) as console:
        if out is not None:
            hf.checks.refuse_unwritable(out)
        trained = hf.load(model)
        if isinstance(trained, hf.ReleasedHead):
            text = trained.statement()
        else:
            text = hf.serving.privacy_statement(trained, hf.Ledger(ledger).status(trained.dataset))
        _write(text, out, console)


@app.command()
def card(model: Model, out: Out = None, ledger: LedgerAddress = DEFAULT_LEDGER) -> None:
    """Write a model card in the format of Hugging Face: public facts and the privacy statement."""
    with command_context(False) as console:
        if out is not None:
            refuse_output(out, (".md",))
        trained = hf.load(model)
        status = None
        if not isinstance(trained, hf.ReleasedHead):
            status = hf.Ledger(ledger).status(trained.dataset)
        _write(hf.serving.model_card(trained, status), out, console)


def _write(text: str, out: Path | None, console: Console) -> None:
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, "utf-8")
        console.print(str(out))
