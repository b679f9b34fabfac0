"""The command `holdfast serve`: private answers over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import holdfast as hf

from .app import DEFAULT_LEDGER, LedgerAddress, app, command_context


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
    """Serve private answers over HTTP, with a page for people, until interrupted.

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
