"""The command `holdfast simulate`."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.table import Table

import holdfast as hf

from .app import NOT_PRIVATE, AsJson, app, command_context, load_model, print_json, refuse_output

_EPSILONS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_OFTEN = 0.2  # the share of queries at the largest distance that is worth a warning


class Against(enum.StrEnum):
    """The quantity that varies in a simulation."""

    QUERIES = "queries"
    EPSILON = "epsilon"


@app.command()
def simulate(
    model: Annotated[Path, typer.Argument(help="A model saved by `holdfast train`.")],
    table: Annotated[
        Path,
        typer.Argument(help="Queries with right answers, one per row: a .csv or .parquet file."),
    ],
    label: Annotated[str, typer.Option(help="The column of right answers.")],
    against: Annotated[
        Against, typer.Option(help="What to vary: the number of queries or the total epsilon.")
    ] = Against.QUERIES,
    epsilon: Annotated[
        float, typer.Option(help="Total epsilon, with --against queries or --accuracy.")
    ] = 1.0,
    delta: Annotated[float, typer.Option(help="Total delta.")] = 1e-5,
    queries: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="A number of queries to compare too; with --against epsilon, the number (1).",
        ),
    ] = None,
    accuracy: Annotated[
        float | None,
        typer.Option(help="Also find the largest number of queries at which this is expected."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The figure to write: a .png, .pdf or .svg file.")
    ] = Path("simulate.png"),
    as_json: AsJson = False,
) -> None:
    """Compute the expected accuracy of private answers, for every mechanism (not private).

    The accuracy is computed in closed form.
    """
    with command_context(as_json) as console:
        refuse_output(out, (".png", ".pdf", ".svg"))
        asked = queries or 1
        trained = load_model(model)
        records = hf.preprocessing.read_records(table, trained.preprocessing)
        right = hf.preprocessing.read_labels(
            records, label, table, trained.preprocessing, trained.classes
        )
        total, progress = hf.Budget(epsilon, delta), console.is_terminal and not as_json
        if against is Against.QUERIES:
            numbers = sorted({*hf.planning.simulation.QUERIES, *([queries] if queries else [])})
            found = hf.simulate(
                trained, records, right, budget=total, queries_planned=numbers, progress=progress
            )
            fixed = f"total {total}"
        else:
            budgets = [hf.Budget(each, delta) for each in _EPSILONS]
            found = hf.simulate(
                trained, records, right, budget=budgets, queries_planned=asked, progress=progress
            )
            fixed = f"{asked} queries in all, delta = {delta:g}"
        title = f"{model.name}, {len(right):,} queries, {trained.neighbours.value}: {fixed}"
        figures: dict[str, Any] = {"against": str(against), **found.as_dict()}
        for measures in _tables(found, title):
            console.print(measures)
        _warn_of_short_reach(found, trained.classes)
        if accuracy is not None:
            most = found.largest_queries(accuracy, budget=total)
            console.print(_largest(most, accuracy, total))
            figures["largest_queries"] = {
                "accuracy": accuracy,
                "epsilon": epsilon,
                "delta": delta,
                "mechanisms": most,
            }
        found.plot(out, title=title)
        console.print(f"{out}: the figure ({NOT_PRIVATE})")
        print_json(figures, as_json)


def _tables(found: hf.planning.Simulation, title: str) -> Iterator[Table]:
    """Yield one table per measure with one row per mechanism, narrow enough for 80 columns."""
    for measure, heading in hf.planning.MEASURES.items():
        plain = f"{heading} without noise: {getattr(found.plain, measure):.3f}"
        if measure == "accuracy":
            plain += f", of always answering the commonest label: {found.commonest:.3f}"
        table = Table(
            title=f"{heading}\n{title}",
            caption=f"{plain} ({NOT_PRIVATE})",
            box=SIMPLE,
            padding=0,
            show_edge=False,
        )
        table.add_column(found.varies, no_wrap=True)
        for setting in found.settings:
            table.add_column(f"{setting:,g}", justify="right", no_wrap=True)
        for name, curve in found.mechanisms.items():
            cells = (f"{getattr(outcome, measure):.3f}".removeprefix("0") for outcome in curve)
            table.add_row(name, *cells)
        yield table


def _warn_of_short_reach(found: hf.planning.Simulation, classes: int) -> None:
    """Warn if labels might be stable at larger distances than training has bounded."""
    reach = found.certificate.reach
    if reach is None or found.certificate.share(reach) < _OFTEN:
        return
    for budget, queries in zip(found.budgets, found.queries, strict=True):
        most = _distance_beyond(budget, queries, reach, classes)
        if most is not None:
            hf.errors.warn(
                f"{found.certificate.share(reach):.0%} of the queries are stable at {reach}, the "
                f"largest distance of this model, and {queries:,} queries at epsilon = "
                f"{budget.epsilon:g} need about {most:,}: train again with --max-distance {most}, "
                "or with the budget (--epsilon, --queries)"
            )
            return


def _distance_beyond(budget: hf.Budget, queries: int, reach: int, classes: int) -> int | None:
    """Return the distance that reliable answers need, if a model that reaches farther has it.

    It is None for a budget that no table suits: no largest distance would help there.
    """
    if budget.delta == 0.0:
        return None
    mechanism = hf.BudgetedResponse(budget, queries)
    needed = hf.planning.distance_needed(mechanism, classes=classes)
    return needed if isinstance(needed, int) and needed > reach else None


def _largest(most: dict[str, int], accuracy: float, budget: hf.Budget) -> Table:
    table = Table(
        title=(
            f"Largest number of queries with expected accuracy at least {accuracy:g} under {budget}"
        ),
        caption=NOT_PRIVATE,
    )
    table.add_column("mechanism")
    table.add_column("queries", justify="right")
    for name, queries in most.items():
        table.add_row(name, f"{queries:,}")
    return table
