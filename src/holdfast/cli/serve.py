"""The commands `holdfast serve` and `holdfast keys`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

import holdfast as hf

from .app import DEFAULT_LEDGER, AsJson, LedgerAddress, app, command_context, print_json


@app.command()
def serve(
    model: Annotated[Path, typer.Argument(help="A model saved by `holdfast train`.")],
    ledger: LedgerAddress = DEFAULT_LEDGER,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="The number of worker processes.")] = 2,
    signed: Annotated[
        bool,
        typer.Option("--signed", help="Refuse a model that was not signed with this ledger's key."),
    ] = False,
    response_step: Annotated[
        float,
        typer.Option(
            help="Send responses at multiples of this many seconds after a request arrived, so "
            "that their time tells little; 0: at once."
        ),
    ] = 0.05,
    max_queries: Annotated[int, typer.Option(min=1, help="The most queries in a request.")] = 1000,
    answers_per_minute: Annotated[
        int,
        typer.Option(min=0, help="The most new answers per analyst and minute; 0: any number."),
    ] = 600,
    requests_per_minute: Annotated[
        int,
        typer.Option(min=0, help="The most requests per analyst, minute and worker; 0: any."),
    ] = 6000,
    oidc_issuer: Annotated[
        str, typer.Option(help="Accept bearer tokens of this OIDC issuer, too.")
    ] = "",
    oidc_audience: Annotated[
        str, typer.Option(help="The audience that such a token must name.")
    ] = "",
    oidc_owner: Annotated[
        list[str] | None,
        typer.Option(help="A subject of the issuer who has the owner's role; repeatable."),
    ] = None,
    https: Annotated[
        bool,
        typer.Option("--https", help="Browsers come by https: send cookies over nothing else."),
    ] = False,
) -> None:
    """Serve private answers over HTTP, with web pages, until interrupted.

    Put a reverse proxy with TLS in front of it; docs/deployment.md shows how.
    """
    with command_context(False) as console:
        settings = hf.service.ServiceSettings(
            str(model),
            ledger,
            require_signature=signed,
            response_step=response_step,
            max_queries=max_queries,
            answers_per_minute=answers_per_minute,
            requests_per_minute=requests_per_minute,
            oidc_issuer=oidc_issuer,
            oidc_audience=oidc_audience,
            oidc_owners=tuple(oidc_owner or ()),
            https=https,
            workers=workers,
        )
        # Opened here once, so that a mistake is reported before any worker starts.
        predictor = hf.service.open_predictor(settings)
        dataset = predictor.model.dataset
        if not hf.ledger.list_keys(predictor.ledger, dataset) and not oidc_issuer:
            console.print(
                f"Nobody has a key yet. Make one for yourself in another terminal:\n"
                f"  holdfast keys add {dataset} owner --role owner    (with the same --ledger)",
                markup=False,
            )
        if not https and host not in ("127.0.0.1", "localhost", "::1"):
            console.print(
                "Keys and answers would travel in the clear: put a proxy with TLS in front, and "
                "add --https."
            )
        predictor.ledger.close()
        shown = f"[{host}]" if ":" in host else host or "127.0.0.1"
        console.print(
            f"{dataset}: starting {workers} workers; then open http://{shown}:{port}", markup=False
        )
        hf.service.run(settings, host, port)


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
