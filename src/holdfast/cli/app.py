"""The application and what its commands share: one-line errors, and figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..checks import refuse_unwritable
from ..errors import BudgetExhausted, HoldfastError, InvalidInput, LedgerUnavailable, TamperedLedger
from ..version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    help="Predictions that hold fast when people come and go.",
    epilog="Exit codes: 0 success; 2 invalid input; 3 the budget does not suffice; 4 the ledger cannot be trusted or reached.",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON and nothing else.")]
NOT_PRIVATE = "not private: for the owner"


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    """Certified training and private prediction."""


@contextmanager
def reporting(as_json: bool) -> Iterator[Console]:
    """Yield a console that is silent under --json; report errors in one line, with an exit code."""
    try:
        yield Console(quiet=as_json)
    except (HoldfastError, OSError) as error:
        typer.echo(f"holdfast: {error}", err=True)
        raise typer.Exit(_exit_code(error)) from error


def _exit_code(error: Exception) -> int:
    """Return 2 for invalid input, 3 for too small a budget, 4 for an unusable ledger."""
    if isinstance(error, BudgetExhausted):
        return 3
    return 4 if isinstance(error, TamperedLedger | LedgerUnavailable) else 2


def refuse_output(path: Path, endings: tuple[str, ...]) -> None:
    """Raise InvalidInput if an output cannot be written, before the work for it is done."""
    if path.suffix not in endings:
        raise InvalidInput(f"{path}: expected a file with the ending {' or '.join(endings)}")
    refuse_unwritable(path)


def emit(figures: Any, as_json: bool) -> None:
    """Print figures as JSON if `as_json` is set."""
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
