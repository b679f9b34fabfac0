"""The owner's commands on a saved model: certify, diagnose and simulate."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import holdfast as hf

from .app import (
    NOT_PRIVATE,
    AsJson,
    app,
    command_context,
    load_model,
    print_json,
    refuse_output,
)

if TYPE_CHECKING:
    from torch import Tensor

_SHOWN = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


@app.command()
def certify(
    model: Annotated[Path, typer.Argument(help="A model saved by `holdfast train`.")],
    table: Annotated[Path, typer.Argument(help="Queries, one per row: a .csv or .parquet file.")],
    label: Annotated[
        str | None,
        typer.Option(help="The column of right answers; if given, the accuracy is shown too."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write each query's label and distance to this .csv file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Certify how many records or persons can change without changing a label (not private)."""
    with command_context(as_json) as console:
        if out is not None:
            refuse_output(out, (".csv",))
        trained = load_model(model)
        queries = hf.preprocessing.read_records(table, trained.preprocessing)
        certificate = trained.certify(queries, progress=console.is_terminal and not console.quiet)
        right = (
            None
            if label is None
            else hf.preprocessing.read_labels(
                queries, label, table, trained.preprocessing, trained.classes
            )
        )
        names = trained.class_names(range(trained.classes))
        hf.certificates.warn_if_useless(certificate.labels, right, names, trained.is_network)
        figures = _certificate_figures(certificate, right)
        console.print(_certificate_table(figures, certificate.neighbours.value))
        if out is not None:
            _write_certificate(certificate, trained, out, console)
        print_json(figures, as_json)


def _certificate_figures(certificate: hf.Certificate, right: Tensor | None) -> dict[str, Any]:
    most = int(certificate.distances.max())
    shown = [k for k in _SHOWN if k <= most]
    figures: dict[str, Any] = {
        "queries": len(certificate),
        "certified_share": {k: certificate.share(k) for k in shown},
    }
    if right is not None:
        correct = certificate.labels == right
        figures["accuracy"] = float(correct.double().mean())
        figures["correct_and_certified_share"] = {
            k: float((correct & (certificate.distances >= k)).double().mean()) for k in shown
        }
    return figures


def _certificate_table(figures: dict[str, Any], relation: str) -> Table:
    accuracy = f", accuracy {figures['accuracy']:.1%}" if "accuracy" in figures else ""
    table = Table(
        title=(
            f"{figures['queries']:,} queries{accuracy}: "
            f"share whose label no k moves ({relation}) can change"
        ),
        caption=NOT_PRIVATE,
    )
    table.add_column("k", justify="right")
    table.add_column("certified", justify="right")
    if "accuracy" in figures:
        table.add_column("certified and correct", justify="right")
    for k, share in figures["certified_share"].items():
        correct = figures.get("correct_and_certified_share", {})
        table.add_row(f"{k:,}", f"{share:.1%}", *([f"{correct[k]:.1%}"] if correct else []))
    return table


def _write_certificate(
    certificate: hf.Certificate, trained: hf.models.CertifiedModel, out: Path, console: Console
) -> None:
    import pyarrow as pa
    from pyarrow import csv

    names = [
        hf.preprocessing.tables.escape_formula(name)
        for name in trained.class_names(certificate.labels.tolist())
    ]
    csv.write_csv(pa.table({"label": names, "distance": certificate.distances.numpy()}), out)
    console.print(f"{out}: every query's label and distance ({NOT_PRIVATE})")


@app.command()
def diagnose(
    model: Annotated[Path, typer.Argument(help="A model saved by `holdfast train`.")],
    table: Annotated[
        Path | None,
        typer.Argument(help="Queries, one per row: are their labels of any use?"),
    ] = None,
    label: Annotated[str | None, typer.Option(help="The column of right answers.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tell why certificates are weak, and what to change (not private)."""
    with command_context(as_json) as console:
        trained = load_model(model)
        if table is None and label is not None:
            raise hf.errors.InvalidInput("--label needs a table of queries")
        first = trained.members[0]
        figures: dict[str, Any] = {"useless": None}
        if table is not None:
            figures |= _labels(trained, table, label)
            console.print(f"[bold]{escape(figures['labels'])}[/bold]")
        if isinstance(first, hf.Certified):
            found = first.diagnose()
            figures |= asdict(found)
            console.print(escape(str(found)))
        else:
            assert isinstance(first, hf.heads.CertifiedHead)
            figures["per_move"] = first.ball.per_move
            console.print(escape(_about_head(first)))
        console.print(f"[dim]{NOT_PRIVATE}[/dim]")
        print_json(figures, as_json)


def _labels(trained: hf.models.CertifiedModel, table: Path, label: str | None) -> dict[str, Any]:
    """Return how good the labels of queries are, in words and in numbers."""
    queries = hf.preprocessing.read_records(table, trained.preprocessing)
    right = None
    if label is not None:
        right = hf.preprocessing.read_labels(
            queries, label, table, trained.preprocessing, trained.classes
        )
    names, given = trained.class_names(range(trained.classes)), trained.predict(queries)
    useless = hf.certificates.why_useless(given, right, names, trained.is_network)
    figures: dict[str, Any] = {"useless": useless}
    if right is None:
        text = (
            "labels: more than one class is given; --label NAME would tell whether they are right"
        )
    else:
        figures["accuracy"] = float((given == right).double().mean())
        figures["commonest"] = max(right.bincount().tolist()) / len(right)
        text = (
            f"labels: right for {figures['accuracy']:.3f} of the queries; always answering the "
            f"commonest label is right for {figures['commonest']:.3f}"
        )
    return {**figures, "labels": useless or text}


def _about_head(head: hf.heads.CertifiedHead) -> str:
    recipe, unit = head.recipe, head.neighbours.unit
    return (
        f"One {unit} moves the weights by at most {head.ball.per_move:.3g}, which follows from the "
        f"recipe alone: travel {recipe.travel:g} x clip {recipe.clip:g} / batch size "
        f"{recipe.batch_size:,}.\n"
        "- Labels are more stable with less travel or clip, and fit better with more; "
        "`holdfast train --epsilon --delta --queries` chooses both for a budget.\n"
        f"- More {unit}s (and a batch size to match) help both; so does whitening with public rows."
    )


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
