"""The option --ledger of the commands, and how they open the ledger."""

from __future__ import annotations

from typing import Annotated, Any

import typer

LedgerAddress = Annotated[
    str,
    typer.Option("--ledger", envvar="HOLDFAST_LEDGER", help="Address of the ledger: sqlite:///FILE or postgresql://USER@HOST/DATABASE."),
]
DEFAULT = "sqlite:///ledger.db"


def open_ledger(address: str) -> Any:
    from ..ledger import Ledger

    return Ledger(address)
