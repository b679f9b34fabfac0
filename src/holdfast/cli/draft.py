"""The command `holdfast schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import holdfast as hf

from .app import app, command_context, refuse_output


@app.command()
def schema(
    public: Annotated[
        Path,
        typer.Argument(
            help="A table of PUBLIC rows with the columns of the private one: .csv or .parquet."
        ),
    ],
    label: Annotated[str, typer.Option(help="The column that holds the label.")],
    out: Annotated[
        Path, typer.Option(help="The schema to write; an existing file is not replaced.")
    ] = Path("schema.toml"),
) -> None:
    """Draft a schema (ranges, categories, classes) from public rows, for you to check.

    Never run it on the private table: everything in a schema counts as public. Without public rows,
    write the schema from what you know about the columns.
    """
    with command_context(False) as console:
        refuse_output(out, (".toml",))
        if out.exists():
            raise hf.errors.InvalidInput(f"{out}: exists already; give another --out, or remove it")
        rows = hf.preprocessing.read_records(public, None)
        out.write_text(hf.preprocessing.draft_schema(rows, label, public.name), "utf-8")
        drafted = hf.Preprocessing.schema(out)
        console.print(
            f"{out}: {len(drafted.columns)} columns, {len(drafted.classes)} classes. Check every "
            "line: the guarantee takes all of it as public."
        )
