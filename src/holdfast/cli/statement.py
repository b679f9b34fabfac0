"""The command `holdfast statement`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import reporting
from .ledgers import DEFAULT, LedgerAddress, open_ledger


def register(app: typer.Typer) -> None:
    app.command()(statement)


def statement(
    model: Annotated[Path, typer.Argument(help="A model saved by `holdfast train`.")],
    out: Annotated[Path | None, typer.Option(help="The .md file to write; standard output if not given.")] = None,
    ledger: LedgerAddress = DEFAULT,
) -> None:
    """Write the privacy statement of a model's answers, in Markdown.

    It says what is promised, what was declared public, and what is not protected.
    """
    from ..checks import refuse_unwritable
    from ..models.saved import load
    from ..serving.statement import privacy_statement

    with reporting(False) as console:
        if out is not None:
            refuse_unwritable(out)
        trained = load(model)
        text = privacy_statement(trained, open_ledger(ledger).status(trained.dataset))
        if out is None:
            typer.echo(text, nl=False)
        else:
            out.write_text(text, "utf-8")
            console.print(str(out))
