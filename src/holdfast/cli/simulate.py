"""The command `holdfast simulate`."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.progress import track
from rich.table import Table

from .app import NOT_PRIVATE, AsJson, emit, refuse_output, reporting

_QUERIES = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
_EPSILONS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Against(enum.StrEnum):
    """The quantity that varies in a simulation."""

    QUERIES = "queries"
    EPSILON = "epsilon"


def register(app: typer.Typer) -> None:
    app.command()(simulate)


def simulate(
    model: Annotated[Path, typer.Argument(help="A model saved by `holdfast train`.")],
    table: Annotated[Path, typer.Argument(help="Queries with right answers, one per row: a .csv or .parquet file.")],
    label: Annotated[str, typer.Option(help="The column of right answers.")],
    against: Annotated[Against, typer.Option(help="What to vary: the number of queries or the total epsilon.")] = Against.QUERIES,
    epsilon: Annotated[float, typer.Option(help="Total epsilon, with --against queries or --accuracy.")] = 10.0,
    delta: Annotated[float, typer.Option(help="Total delta.")] = 1e-5,
    queries: Annotated[int, typer.Option(min=1, help="Number of queries, with --against epsilon.")] = 1,
    accuracy: Annotated[
        float | None, typer.Option(help="Also find the largest number of queries at which this accuracy is still expected.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The figure to write: a .png, .pdf or .svg file.")] = Path("simulate.png"),
    as_json: AsJson = False,
) -> None:
    """Compute the expected accuracy of private answers, for every mechanism.

    The accuracy is computed in closed form. Not private: for the owner.
    """
    from ..accounting import Budget
    from ..planning import Outcome, largest_queries
    from ..planning.simulation import draw

    with reporting(as_json) as console:
        refuse_output(out, (".png", ".pdf", ".svg"))
        certificate, right, listed = _contenders(model, table, label, delta)
        xs: tuple[float, ...] = _QUERIES if against is Against.QUERIES else _EPSILONS
        settings = [(Budget(epsilon, delta), int(x)) if against is Against.QUERIES else (Budget(x, delta), queries) for x in xs]
        shown = track(listed.items(), "simulating", len(listed), console=console, transient=True, disable=not console.is_terminal)
        curves = {name: [expected(certificate, right, *setting) for setting in settings] for name, expected in shown}
        plain = Outcome.of((certificate.labels == right).double(), (certificate.distances >= 0).double(), right)
        fixed = f"total ({epsilon:g}, {delta:g})" if against is Against.QUERIES else f"{queries} queries in all, delta = {delta:g}"
        title = f"{model.name}, {len(right):,} queries, {certificate.neighbours.value}: {fixed}"
        xlabel = "number of queries" if against is Against.QUERIES else "total epsilon"
        figures: dict[str, Any] = {"against": str(against), xlabel: xs, "plain": asdict(plain)}
        figures["mechanisms"] = {name: [asdict(outcome) for outcome in outcomes] for name, outcomes in curves.items()}
        for measures in _tables(curves, xs, xlabel, f"{title}; without noise: {plain.accuracy:.3f}"):
            console.print(measures)
        if accuracy is not None:
            budget = Budget(epsilon, delta)
            reach = {name: largest_queries(expected, certificate, right, budget, accuracy) for name, expected in listed.items()}
            console.print(_reach(reach, accuracy, budget))
            figures["largest_queries"] = {"accuracy": accuracy, "epsilon": epsilon, "delta": delta, "mechanisms": reach}
        draw(curves, xs, xlabel, title, plain, out)
        console.print(f"{out}: the figure ({NOT_PRIVATE})")
        emit(figures, as_json)


def _contenders(model: Path, table: Path, label: str, delta: float) -> tuple[Any, Any, dict[str, Any]]:
    from ..certificates import certify_vote, paper_distance
    from ..errors import InvalidInput
    from ..models.ensemble import CertifiedEnsemble
    from ..planning import mechanisms_to_compare
    from ..relations import Neighbours
    from .tables import labels, load_model, some_records

    trained = load_model(model)
    if trained.neighbours is Neighbours.REMOVE:
        raise InvalidInput(f"{model}: trained under 'remove' (unlearning), which allows no private answers; train under 'add_remove'")
    queries = some_records(table, trained.preprocessing, label)
    right = labels(queries, label, table, trained.preprocessing, trained.classes)
    if not isinstance(trained, CertifiedEnsemble):
        certificate = trained.certify(queries)
        return certificate, right, mechanisms_to_compare(certificate, delta)
    members = trained.certify_members(queries)
    certificate = certify_vote(members)
    return certificate, right, mechanisms_to_compare(certificate, delta, paper_distance(members) if trained.classes == 2 else None)


def _tables(curves: dict[str, Any], xs: tuple[float, ...], xlabel: str, title: str) -> Iterator[Table]:
    """Yield one table per measure, one row per mechanism, for a terminal of 80 columns."""
    from ..planning.simulation import MEASURES

    for measure, heading in MEASURES:
        table = Table(title=f"{heading}\n{title}", caption=NOT_PRIVATE, box=SIMPLE, padding=0, show_edge=False)
        table.add_column(xlabel, no_wrap=True)
        for x in xs:
            table.add_column(f"{x:,g}", justify="right", no_wrap=True)
        for name, curve in curves.items():
            table.add_row(name, *(f"{getattr(outcome, measure):.3f}".removeprefix("0") for outcome in curve))
        yield table


def _reach(reach: dict[str, int], accuracy: float, budget: Any) -> Table:
    table = Table(
        title=f"Largest number of queries with expected accuracy at least {accuracy:g} under {budget}",
        caption=NOT_PRIVATE,
    )
    table.add_column("mechanism")
    table.add_column("queries", justify="right")
    for name, most in reach.items():
        table.add_row(name, f"{most:,}")
    return table
