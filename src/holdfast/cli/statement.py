"""The commands `holdfast statement` and `holdfast card`: what may be said about a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import holdfast as hf

from .app import DEFAULT_LEDGER, AsJson, LedgerAddress, app, command_context, refuse_output

Model = Annotated[
    Path, typer.Argument(help="A model saved by `holdfast train` or `holdfast release`.")
]
Out = Annotated[
    Path | None, typer.Option(help="The .md file to write; standard output if not given.")
]


@app.command()
def statement(
    model: Model,
    out: Annotated[
        Path | None,
        typer.Option(help="The .md or .json file to write; standard output if not given."),
    ] = None,
    ledger: LedgerAddress = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """Write the privacy statement of a model's answers, or of a released head, in Markdown.

    With --json, or for a .json file, it is written as data, with the fields of NIST SP 800-226.

    It says what is promised, what was declared public, and what is not protected.
    """
    with command_context(False) as console:
        if out is not None:
            hf.checks.refuse_unwritable(out)
        trained = hf.load(model)
        as_data = as_json or (out is not None and out.suffix == ".json")
        if isinstance(trained, hf.ReleasedHead):
            if as_data:
                raise hf.errors.InvalidInput(
                    f"{model}: the statement of a released head is written in Markdown only; "
                    "leave out --json"
                )
            text = trained.statement()
        elif as_data:
            facts = hf.serving.statement_facts(trained, hf.Ledger(ledger).status(trained.dataset))
            text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
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
