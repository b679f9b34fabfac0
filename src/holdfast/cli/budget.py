"""The commands of `holdfast budget`: budgets, and the ledger that holds them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import holdfast as hf

from .app import (
    DEFAULT_LEDGER,
    AsJson,
    LedgerAddress,
    app,
    command_context,
    print_json,
    refuse_output,
)

commands = typer.Typer(
    no_args_is_help=True, help="Manage privacy budgets and the ledger that holds them."
)

Name = Annotated[
    str,
    typer.Argument(help="Your name for the private data, as given to `holdfast train --dataset`."),
]
Shares = Annotated[
    list[str] | None,
    typer.Option(
        "--share",
        help="ANALYST=PART: limit an analyst to a part of the budget, from 0 to 1; repeatable.",
    ),
]


app.add_typer(commands, name="budget")


@commands.command()
def create(
    name: Name,
    epsilon: Annotated[
        float, typer.Option(help="Total epsilon, over all answers that will ever be given.")
    ],
    delta: Annotated[
        float,
        typer.Option(
            help="Total delta; far below 1 / number of records or persons. 0: pure differential "
            "privacy."
        ),
    ] = 1e-6,
    queries: Annotated[
        int, typer.Option(min=1, help="How many answers to plan for; determines the noise of each.")
    ] = 1000,
    neighbours: Annotated[
        str,
        typer.Option(
            help="The neighbour relation of the models: add_remove or replace; per person, "
            "add_remove_person or replace_person."
        ),
    ] = "add_remove",
    reserve: Annotated[
        float,
        typer.Option(help="The part of delta set aside for mechanisms with a delta of their own."),
    ] = 0.0,
    release: Annotated[
        bool,
        typer.Option("--release", help="Plan it for `holdfast release`, not for answers."),
    ] = False,
    share: Shares = None,
    beside_other_ledgers: Annotated[
        bool,
        typer.Option(
            "--beside-other-ledgers",
            help="Allow this even if another ledger has a budget for this name; the two add up.",
        ),
    ] = False,
    ledger: LedgerAddress = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """Grant a budget to a data set, and create the ledger if there is none."""
    with command_context(as_json) as console:
        shares, opened = _shares(share), hf.Ledger(ledger)
        granted = hf.Budget(epsilon, delta)
        opened.create_budget(
            name,
            granted,
            neighbours=neighbours,
            queries=queries,
            reserve=reserve,
            release=release,
            beside_other_ledgers=beside_other_ledgers,
        )
        status = _with_shares(opened, name, shares)
        purpose = "the release of a head" if release else f"about {queries:,} answers"
        console.print(
            f"{escape(name)}: {status.budget} for {purpose}. Key and head are in "
            f"{escape(str(opened.home))}: keep them apart from the database."
        )
        others = [other for other in opened.names() if other != name]
        if others:
            console.print(
                f"[dim]This ledger also has budgets for {escape(', '.join(others))}. If they are "
                "about the same people, the budgets add up: use one name.[/dim]"
            )
        print_json(status.as_dict(), as_json)


@commands.command()
def show(
    name: Annotated[
        str | None, typer.Argument(help="A data set; all of them if not given.")
    ] = None,
    ledger: LedgerAddress = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """Show what was granted, spent and answered."""
    with command_context(as_json) as console:
        opened = hf.Ledger(ledger)
        statuses = [
            opened.status(each) for each in ([name] if name is not None else opened.names())
        ]
        for status in statuses:
            _print(console, status)
        print_json([status.as_dict() for status in statuses], as_json)


@commands.command("raise")
def raise_(
    name: Name,
    epsilon: Annotated[
        float | None, typer.Option(help="The new total epsilon; as before if not given.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="The new total delta; as before if not given.")
    ] = None,
    share: Shares = None,
    reason: Annotated[str, typer.Option(help="Why; it is kept in the ledger.")] = "",
    ledger: LedgerAddress = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """Raise a budget, or set analysts' shares.

    The larger budget is then what protects the records, for earlier answers too.
    """
    with command_context(as_json) as console:
        shares, opened = _shares(share), hf.Ledger(ledger)
        if epsilon is None and delta is None and not shares:
            raise hf.errors.InvalidInput("nothing to change: give --epsilon, --delta or --share")
        if epsilon is not None or delta is not None:
            now = opened.status(name).budget
            opened.raise_budget(
                name,
                hf.Budget(
                    now.epsilon if epsilon is None else epsilon,
                    now.delta if delta is None else delta,
                ),
                reason=reason,
            )
        status = _with_shares(opened, name, shares)
        _print(console, status)
        print_json(status.as_dict(), as_json)


@commands.command()
def close(
    name: Name,
    reason: Annotated[str, typer.Option(help="Why; it is kept in the ledger.")],
    ledger: LedgerAddress = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """Close a budget for good: nothing more is charged; recorded answers stay free."""
    with command_context(as_json) as console:
        status = hf.Ledger(ledger).close_budget(name, reason=reason)
        console.print(f"{escape(name)} is closed, with {status.share_spent:.1%} spent")
        print_json(status.as_dict(), as_json)


@commands.command()
def verify(ledger: LedgerAddress = DEFAULT_LEDGER, as_json: AsJson = False) -> None:
    """Verify every seal, every sum and the head outside the database.

    Exit code 4 means that something is wrong.
    """
    with command_context(as_json) as console:
        count = hf.Ledger(ledger).verify(progress=not as_json)
        console.print(f"{count:,} entries, all as they were written")
        print_json({"entries": count, "intact": True}, as_json)


@commands.command()
def backup(
    out: Annotated[Path, typer.Argument(help="The file to write, for example ledger.backup.")],
    ledger: LedgerAddress = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """Write a backup of the ledger, verified, while it is in use.

    The file holds all entries, with masked answers. The key and the head, in HOLDFAST_HOME, are not
    in it: back them up to another place.
    """
    with command_context(as_json) as console:
        count = hf.Ledger(ledger).backup(out)
        console.print(f"{escape(str(out))}: {count:,} entries")
        print_json({"entries": count}, as_json)


@commands.command()
def restore(
    file: Annotated[Path, typer.Argument(help="A file by `holdfast budget backup`.")],
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it: the old database is refused from then on.")
    ] = False,
    ledger: LedgerAddress = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """Restore a backup into an empty database, and charge what was spent after it was made.

    Stop everything that uses the ledger, and move the old database away. Nothing is refunded;
    answers that were recorded after the backup are gone, and all access keys and sessions end.
    HOLDFAST_HOME must hold the key and the latest head.
    """
    with command_context(as_json) as console:
        if not yes:
            raise hf.errors.InvalidInput(
                "restoring ends all access keys, and the old database is refused from then on; add "
                "--yes to do it"
            )
        done = hf.ledger.restore_backup(file, ledger)
        console.print(
            f"{done.entries:,} entries restored; {done.lost:,} later ones are gone, and are "
            "charged. After a power cut, up to one second of them may not be known. Make new "
            "access keys: holdfast keys add"
        )
        for name, share in done.charged.items():
            console.print(f"  {escape(name)}: {share:.2%} of its budget charged for what is gone")
        for name, reason in done.closed.items():
            console.print(f"  {escape(name)} is closed: {reason}")
        print_json(asdict(done), as_json)


@commands.command()
def export(
    out: Annotated[
        Path | None,
        typer.Option(
            help="The .csv or .jsonl file to write; JSON lines on standard output if not given."
        ),
    ] = None,
    ledger: LedgerAddress = DEFAULT_LEDGER,
) -> None:
    """Export all entries, verified, for auditors.

    Entries contain answers and keyed hashes of questions, never features.
    """
    with command_context(False) as console:
        if out is not None:
            refuse_output(out, (".csv", ".jsonl"))
        pages = hf.Ledger(ledger).pages()
        if out is None:
            for page in pages:
                typer.echo(_lines(page), nl=False)
            return
        count, table = 0, out.suffix == ".csv"
        with out.open("w", encoding="utf-8", newline="") as file:
            file.write(_table([hf.ledger.COLUMNS]) if table else "")
            for page in pages:
                file.write(_table(page) if table else _lines(page))
                count += len(page)
        console.print(f"{out}: {count:,} entries")


def _shares(given: list[str] | None) -> dict[str, float]:
    shares = {}
    for text in given or []:
        analyst, _, part = text.rpartition("=")
        try:
            shares[analyst] = float(part)
        except ValueError:
            raise hf.errors.InvalidInput(
                f"--share {text}: expected ANALYST=PART, for example ada=0.25"
            ) from None
        if not 0.0 <= shares[analyst] <= 1.0:
            raise hf.errors.InvalidInput(
                f"--share {text}: expected ANALYST=PART, with a part from 0 to 1"
            )
        hf.checks.check_name("analyst", analyst)
    return shares


def _with_shares(ledger: hf.Ledger, name: str, shares: dict[str, float]) -> hf.ledger.BudgetStatus:
    """Set the shares, and return the budget's status."""
    for analyst, part in shares.items():
        ledger.set_share(name, analyst, part)
    return ledger.status(name)


def _print(console: Console, status: hf.ledger.BudgetStatus) -> None:
    table = Table(
        title=f"{escape(status.name)}: {status.budget} per {status.neighbours.unit}, "
        f"{status.neighbours.value}",
        caption=f"spent and granted are in {status.unit}",
    )
    table.add_column("")
    for heading in ("answers left", "share spent", "spent", "granted"):
        table.add_column(heading, justify="right")
    for analyst in sorted({*status.by_analyst, *status.shares}):
        own = status.limit * status.shares.get(analyst, 1.0)
        left = f"{status.answers_left_by_share[analyst]:,}" if analyst in status.shares else ""
        _row(table, analyst, left, status.by_analyst.get(analyst, 0.0), own)
    table.add_section()
    spent_on = f"{status.answers:,} answers"
    if status.releases:
        spent_on += f", {status.releases} released"
    left = "release" if status.release else f"{status.answers_left:,}"
    _row(table, f"all, {spent_on}", left, status.spent, status.limit)
    console.print(table)


def _row(table: Table, name: str, left: str, spent: float, limit: float) -> None:
    used = "" if not limit else f"{spent / limit:.1%}"
    table.add_row(escape(name), left, used, f"{spent:.6g}", f"{limit:.6g}")


def _lines(page: list[hf.ledger.Entry]) -> str:
    return "".join(json.dumps(entry._asdict()) + "\n" for entry in page)


def _table(rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([hf.preprocessing.tables.escape_formula(cell) for cell in row] for row in rows)
    return text.getvalue()
