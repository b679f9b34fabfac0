"""The command `holdfast plan`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from .app import AsJson, emit, reporting

_USUAL = ((10.0, 10), (10.0, 100), (10.0, 1000), (10.0, 10_000), (1.0, 100))


def register(app: typer.Typer) -> None:
    app.command()(plan)


def plan(
    epsilon: Annotated[
        float | None, typer.Option(help="Total epsilon; 10 if only --queries is given, a few common budgets if neither is.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Total delta.")] = 1e-5,
    queries: Annotated[list[int] | None, typer.Option(help="Number of queries; may be given several times.")] = None,
    classes: Annotated[int, typer.Option(min=2, help="Number of classes.")] = 2,
    flips: Annotated[float, typer.Option(help="How often an answer may be wrong because of noise.")] = 0.01,
    as_json: AsJson = False,
) -> None:
    """Show how stable a label must be for its private answer to be rarely wrong.

    Uses public numbers only.
    """
    from ..accounting import Budget
    from ..errors import InvalidInput
    from ..planning import plan as distances

    with reporting(as_json) as console:
        if not 0.0 < flips < 1.0:
            raise InvalidInput(f"flips={flips!r}: expected a number between 0 and 1; try 0.01")
        counts = queries or [10, 100, 1000, 10_000]
        targets = _USUAL if epsilon is None and not queries else [(10.0 if epsilon is None else epsilon, count) for count in counts]
        rows = distances([(Budget(total, delta), count) for total, count in targets], classes, flips)
        table = Table(title=f"Distance needed for a share of flips below {flips:g}, {classes} classes, delta = {delta:g}")
        for heading in ("total epsilon", "queries", *rows[0]["distance"]):
            table.add_column(heading, justify="right")
        for row in rows:
            cells = ("-" if needed is None else f"{needed:,}" if isinstance(needed, int) else needed for needed in row["distance"].values())
            table.add_row(f"{row['epsilon']:g}", f"{row['queries']:,}", *cells)
        console.print(table)
        emit(rows, as_json)
