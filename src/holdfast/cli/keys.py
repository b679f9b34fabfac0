"""The commands of `holdfast keys`: who may ask a service, and until when."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

import holdfast as hf

from .app import DEFAULT_LEDGER, AsJson, LedgerAddress, app, command_context, print_json

commands = typer.Typer(
    no_args_is_help=True, help="Manage the keys with which analysts use a service."
)
app.add_typer(commands, name="keys")

DataSet = Annotated[str, typer.Argument(help="The data set, as named in `holdfast budget create`.")]
KeyId = Annotated[str, typer.Argument(help="The id of the key: its part after `hf-`.")]


@commands.command()
def add(
    dataset: DataSet,
    analyst: Annotated[
        str,
        typer.Argument(help="Who asks with it; keys of one analyst share recorded answers."),
    ],
    role: Annotated[
        str, typer.Option(help="analyst, or owner, who may see the ledger and change the budget.")
    ] = "analyst",
    days: Annotated[float, typer.Option(help="After how many days it ends; 0: never.")] = 90.0,
    ledger: LedgerAddress = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it; it is not stored, and cannot be shown again."""
    with command_context(as_json):
        until = None if days == 0.0 else days
        text = hf.ledger.add_key(hf.Ledger(ledger), dataset, analyst, role=role, days=until)
        print_json({"key": text}, as_json)
        if not as_json:
            typer.echo(text)


@commands.command("list")
def list_(
    dataset: DataSet, ledger: LedgerAddress = DEFAULT_LEDGER, as_json: AsJson = False
) -> None:
    """List all keys of a data set, without their secrets."""
    with command_context(as_json) as console:
        rows = [key.as_dict() for key in hf.ledger.list_keys(hf.Ledger(ledger), dataset)]
        whole = Column("id", no_wrap=True, min_width=16)  # other commands take it
        table = Table(whole, "analyst", "role", "made (UTC)", "ends (UTC)", "valid")
        for row in rows:
            table.add_row(
                *(escape("yes" if cell is True else str(cell or "no")) for cell in row.values())
            )
        console.print(table if rows else f"{escape(dataset)} has no keys")
        print_json(rows, as_json)


@commands.command()
def rotate(
    dataset: DataSet,
    key_id: KeyId,
    overlap_hours: Annotated[
        float, typer.Option(help="For how many hours the old key remains valid.")
    ] = 24.0,
    days: Annotated[
        float | None,
        typer.Option(help="After how many days the new key ends; by default with the old one."),
    ] = None,
    ledger: LedgerAddress = DEFAULT_LEDGER,
) -> None:
    """Replace a key: print a new one for the same analyst, and end the old one soon."""
    with command_context(False):
        opened = hf.Ledger(ledger)
        new = hf.ledger.rotate_key(opened, dataset, key_id, overlap_hours=overlap_hours, days=days)
        typer.echo(new)


@commands.command()
def revoke(dataset: DataSet, key_id: KeyId, ledger: LedgerAddress = DEFAULT_LEDGER) -> None:
    """End a key, and keys that replaced it, at once, in all running services."""
    with command_context(False) as console:
        hf.ledger.revoke_key(hf.Ledger(ledger), dataset, key_id)
        console.print(f"{escape(key_id)} has ended")
