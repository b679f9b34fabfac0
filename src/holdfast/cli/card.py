"""The command `holdfast card`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import holdfast as hf

from .app import DEFAULT_LEDGER, LedgerAddress, app, command_context, refuse_output


@app.command()
def card(
    model: Annotated[
        Path, typer.Argument(help="A model saved by `holdfast train` or `holdfast release`.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The .md file to write; standard output if not given.")
    ] = None,
    ledger: LedgerAddress = DEFAULT_LEDGER,
) -> None:
    """Write a model card in the format of Hugging Face: public facts and the privacy statement."""
    with command_context(False) as console:
        if out is not None:
            refuse_output(out, (".md",))
        trained = hf.load(model)
        status = None
        if not isinstance(trained, hf.ReleasedHead):
            status = hf.Ledger(ledger).status(trained.dataset)
        text = hf.serving.model_card(trained, status)
        if out is None:
            typer.echo(text, nl=False)
        else:
            out.write_text(text, "utf-8")
            console.print(str(out))
