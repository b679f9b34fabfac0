"""The application and what its commands share: one-line errors, and figures as JSON."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console

import holdfast as hf

# The order in which a newcomer meets them, which is also the order of the help and of docs/cli.md.
_ORDER = (
    "demo",
    "example",
    "schema",
    "train",
    "certify",
    "diagnose",
    "simulate",
    "plan",
    "budget",
    "ask",
    "serve",
    "keys",
    "release",
    "statement",
    "card",
    "doctor",
    "reproduce",
)


class _OrderedCommands(typer.core.TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)


app = typer.Typer(
    cls=_OrderedCommands,
    no_args_is_help=True,
    add_completion=True,
    help="Predictions that hold fast when people come and go.",
    epilog=(
        "Exit codes: 0 success; 2 invalid input; 3 the budget does not suffice; "
        "4 the ledger cannot be trusted or reached."
    ),
)


def warn_of_visible_password(
    context: typer.Context, parameter: typer.CallbackParam, address: str | None
) -> str | None:
    """Warn if an address with a password was typed, where every user of the machine can read it."""
    source = context.get_parameter_source(str(parameter.name))
    typed = source is not None and source.name == "COMMANDLINE"
    if typed and address is not None and hf.ledger.has_password(address):
        typer.echo(
            f"Warning: --{parameter.name} shows the password of the database to everybody who can "
            "list processes here. Leave it out of the address, and set PGPASSWORD or write it into "
            "~/.pgpass.",
            err=True,
        )
    return address


AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON and nothing else.")]
LedgerAddress = Annotated[
    str,
    typer.Option(
        "--ledger",
        envvar="HOLDFAST_LEDGER",
        callback=warn_of_visible_password,
        help="Address of the ledger: sqlite:///FILE or postgresql://USER@HOST/DATABASE; a password "
        "is read from PGPASSWORD or ~/.pgpass.",
    ),
]
DEFAULT_LEDGER = "sqlite:///ledger.db"
NOT_PRIVATE = "not private: for the owner"


def _version(asked: bool) -> None:
    if asked:
        typer.echo(hf.__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Log to standard error what is read, written and charged."),
    ] = False,
) -> None:
    """Certified training and private prediction."""
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")


@contextmanager
def command_context(as_json: bool, checkpoint: Path | None = None) -> Iterator[Console]:
    """Yield a console that is silent under --json; report errors in one line, with an exit code.

    An interruption is reported like an error; it says whether the command goes on from a
    checkpoint.
    """
    usual, warnings.formatwarning = warnings.formatwarning, _format_warning
    try:
        yield Console(quiet=as_json)
    except (hf.HoldfastError, OSError) as error:
        typer.echo(f"holdfast: {_in_options(str(error))}", err=True)
        raise typer.Exit(_exit_code(error)) from error
    except KeyboardInterrupt:
        typer.echo(f"holdfast: interrupted{_about_checkpoint(checkpoint)}", err=True)
        raise typer.Exit(130) from None
    finally:
        warnings.formatwarning = usual


def _in_options(text: str) -> str:
    """Return a message of the library with options instead of arguments of functions."""
    for name, option in _options(typer.main.get_command(app)).items():
        # Only where a message names an argument and its value: cells and paths stay as they are.
        text = re.sub(rf"(?<!\S){name}=None(?=[\s:;,]|$)", f"{option} is missing", text)
        text = re.sub(rf"(?<!\S){name}=True(?=[\s:;,]|$)", option, text)
        text = re.sub(rf"(?<!\S){name}=(?={_VALUE}|$)", f"{option} ", text)
    return text


_VALUE = r"(?:False|inf|nan|[-+.\d'\"])[^/\s]*(?:[\s:;,]|$)"


def _options(command: Any) -> dict[str, str]:
    """Return the options of a command and of the commands in it, by their names in Python."""
    found = {each.name: each.opts[0] for each in command.params if each.param_type_name == "option"}
    for part in getattr(command, "commands", {}).values():
        found |= _options(part)
    return found


def _about_checkpoint(path: Path | None) -> str:
    """Return where an interrupted command goes on, if it has a checkpoint."""
    if path is None:
        return ""
    if not path.exists():
        return f"; no step was finished, so there is no checkpoint at {path}"
    return f"; the same command goes on from the checkpoint {path}"


def _format_warning(message: Warning | str, *_: Any, **__: Any) -> str:
    return f"holdfast: warning: {_in_options(str(message))}\n"


def _exit_code(error: Exception) -> int:
    """Return 2 for invalid input, 3 for too small a budget, 4 for an unusable ledger."""
    if isinstance(error, hf.BudgetExhausted):
        return 3
    return 4 if isinstance(error, hf.errors.TamperedLedger | hf.errors.LedgerUnavailable) else 2


def refuse_output(path: Path, endings: tuple[str, ...]) -> None:
    """Raise InvalidInput if an output cannot be written, before the work for it is done."""
    if path.suffix not in endings:
        raise hf.errors.InvalidInput(
            f"{path}: expected a file with the ending {' or '.join(endings)}"
        )
    hf.checks.refuse_unwritable(path)


def print_json(figures: Any, as_json: bool) -> None:
    """Print figures as JSON if `as_json` is set."""
    if as_json:
        typer.echo(json.dumps(figures, indent=2))


def load_model(path: Path) -> hf.models.CertifiedModel:
    """Load a saved model; raise InvalidInput if it is a released head or cannot read tables."""
    model = load_any(path)
    if isinstance(model, hf.ReleasedHead):
        raise hf.errors.InvalidInput(
            f"{path}: this is a released head, which holds no certificates; get its labels with "
            "`holdfast ask`, free of charge"
        )
    return model


def load_any(path: Path) -> hf.models.CertifiedModel | hf.ReleasedHead:
    """Load a saved model or a released head; raise InvalidInput if it cannot read tables."""
    model = hf.load(path)
    if model.preprocessing is None or not model.preprocessing.columns:
        raise hf.errors.InvalidInput(
            f"{path}: this model was trained without a schema, so it cannot read tables; "
            "use it from Python"
        )
    return model
