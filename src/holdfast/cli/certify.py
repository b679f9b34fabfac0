"""The command `holdfast certify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .app import NOT_PRIVATE, AsJson, emit, refuse_output, reporting

_SHOWN = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


def register(app: typer.Typer) -> None:
    app.command()(certify)


def certify(
    model: Annotated[Path, typer.Argument(help="A model saved by `holdfast train`.")],
    table: Annotated[Path, typer.Argument(help="Queries, one per row: a .csv or .parquet file.")],
    label: Annotated[str | None, typer.Option(help="The column of right answers; if given, the accuracy is shown too.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write each query's label and distance to this .csv file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Certify how many records can change without changing a query's label.

    Not private: for the owner.
    """
    from .tables import labels, load_model, some_records

    with reporting(as_json) as console:
        if out is not None:
            refuse_output(out, (".csv",))
        trained = load_model(model)
        queries = some_records(table, trained.preprocessing, label)
        certificate = trained.certify(queries)
        right = None if label is None else labels(queries, label, table, trained.preprocessing, trained.classes)
        figures = _figures(certificate, right)
        console.print(_table(figures, certificate.neighbours.value))
        if out is not None:
            _write(certificate, trained, out, console)
        emit(figures, as_json)


def _figures(certificate: Any, right: Any) -> dict[str, Any]:
    most = int(certificate.distances.max())
    shown = [k for k in _SHOWN if k <= most]
    figures: dict[str, Any] = {"queries": len(certificate), "certified_share": {k: certificate.share(k) for k in shown}}
    if right is not None:
        correct = certificate.labels == right
        figures["accuracy"] = float(correct.double().mean())
        figures["correct_and_certified_share"] = {k: float((correct & (certificate.distances >= k)).double().mean()) for k in shown}
    return figures


def _table(figures: dict[str, Any], relation: str) -> Table:
    accuracy = f", accuracy {figures['accuracy']:.1%}" if "accuracy" in figures else ""
    table = Table(
        title=f"{figures['queries']:,} queries{accuracy}: share whose label no k moves ({relation}) can change",
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


def _write(certificate: Any, trained: Any, out: Path, console: Console) -> None:
    import pyarrow as pa
    from pyarrow import csv

    from .tables import class_names, harmless

    names = [harmless(name) for name in class_names(trained, certificate.labels.tolist())]
    csv.write_csv(pa.table({"label": names, "distance": certificate.distances.numpy()}), out)
    console.print(f"{out}: every query's label and distance ({NOT_PRIVATE})")
