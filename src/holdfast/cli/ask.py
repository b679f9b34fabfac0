"""Commands on a saved model: certify and ask."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import holdfast as hf

from .app import (
    DEFAULT_LEDGER,
    NOT_PRIVATE,
    AsJson,
    LedgerAddress,
    app,
    command_context,
    load_any,
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
        hf.certificates.usefulness.warn_if_useless(
            certificate.labels, right, names, trained.is_network
        )
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
def ask(
    model: Annotated[
        Path, typer.Argument(help="A model saved by `holdfast train` or `holdfast release`.")
    ],
    table: Annotated[
        str,
        typer.Argument(
            help="Queries, one per row: a .csv or .parquet file; - reads a CSV from standard input."
        ),
    ] = "-",
    row: Annotated[
        str | None,
        typer.Option(
            help='One query as JSON, instead of a table: \'{"age": 40, "job": "nurse"}\'.'
        ),
    ] = None,
    analyst: Annotated[
        str | None,
        typer.Option(
            help="Who asks; required unless the head was released. The same question by the same "
            "analyst is charged only once; another analyst pays for it."
        ),
    ] = None,
    preview: Annotated[
        bool, typer.Option("--preview", help="Only show the cost; nothing is answered or charged.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the queries' columns and the answers to this .csv file."),
    ] = None,
    signed: Annotated[
        bool,
        typer.Option("--signed", help="Refuse a model that was not signed with this ledger's key."),
    ] = False,
    ledger: LedgerAddress = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """Answer queries privately, after charging the budget.

    A released head answers free of charge, without a ledger. Prints one label per line to standard
    output. Exit code 3 means that the budget does not suffice.
    """
    with command_context(as_json):
        if out is not None:
            refuse_output(out, (".csv",))
        trained = load_any(model)
        queries = _queries(table, row, trained)
        if isinstance(trained, hf.ReleasedHead):
            if signed or preview:
                raise hf.errors.InvalidInput(
                    f"{model}: --signed and --preview are for models that are charged; a released "
                    "head has no signature and costs nothing"
                )
            _answer_freely(trained, queries, out, as_json)
            return
        if analyst is None:
            raise hf.errors.InvalidInput(
                "--analyst is missing: say who asks, for example --analyst ada; answers are "
                "recorded by name, and free only for the same analyst"
            )
        predictor = hf.PrivatePredictor(trained, hf.Ledger(ledger), require_signature=signed)
        if preview:
            about = predictor.preview(queries, analyst=analyst)
            print_json(asdict(about), as_json)
            fate = "would cost" if about.new <= about.fits else "would be refused: they cost"
            _print_status(
                f"{analyst}: {about.new:,} new answers {fate} {about.cost:.6g} of the "
                f"{about.remaining:.6g} left for {analyst}, enough for {about.fits:,}; "
                f"{_spent_text(predictor)}{_why_new(predictor)}",
                as_json,
            )
            if about.new > about.fits:
                raise typer.Exit(3)
            return
        answers = predictor.ask_all(queries, analyst=analyst)
        names = trained.class_names([answer.index for answer in answers])
        _output(names, queries, out, as_json)
        print_json([asdict(answer) for answer in answers], as_json)
        cost = sum(answer.cost for answer in answers)
        about = predictor.preview(queries, analyst=analyst)
        _print_status(
            f"{analyst}: {len(answers):,} answers, cost {cost:.6g}, enough is left for "
            f"{about.fits:,} more; {_spent_text(predictor)}",
            as_json,
        )


def _answer_freely(
    released: hf.ReleasedHead, queries: Any, out: Path | None, as_json: bool
) -> None:
    """Print the labels of a released head, which cost nothing."""
    if isinstance(queries, dict):
        queries = {column: [cell] for column, cell in queries.items()}
    indices = released.predict(queries).tolist()
    names = released.class_names(indices)
    _output(names, queries, out, as_json)
    pairs = zip(names, indices, strict=True)
    print_json([{"label": name, "index": index, "cost": 0.0} for name, index in pairs], as_json)
    _print_status(f"{len(names):,} answers of a released head, free of charge", as_json)


def _output(names: list[str], queries: Any, out: Path | None, as_json: bool) -> None:
    if out is not None:
        _write(names, queries, out)
    elif not as_json:
        typer.echo("\n".join(names))


def _queries(
    table: str, row: str | None, trained: hf.models.CertifiedModel | hf.ReleasedHead
) -> Any:
    if row is None and table != "-":
        return hf.preprocessing.read_records(Path(table), trained.preprocessing)
    if row is None:
        if sys.stdin is None:
            raise hf.errors.InvalidInput("standard input is closed; give a table, or --row")
        return hf.preprocessing.read_csv_bytes(
            sys.stdin.buffer.read(), "standard input", trained.preprocessing
        )
    if table != "-":
        raise hf.errors.InvalidInput("give either a table or --row, not both")
    try:
        cells = json.loads(row)
    except json.JSONDecodeError as error:
        raise hf.errors.InvalidInput(f"--row: not JSON ({error})") from None
    if not isinstance(cells, dict) or not cells:
        raise hf.errors.InvalidInput(
            f"--row {row}: expected one record, for example '{{\"age\": 40}}'"
        )
    return cells


def _write(names: list[str], queries: Any, out: Path) -> None:
    """Write the queries' own columns, and the answer as the last one."""
    import pyarrow as pa
    from pyarrow import csv

    table = queries if isinstance(queries, pa.Table) else pa.table({})
    columns = {
        name: [hf.preprocessing.tables.escape_formula(cell) for cell in table[name].to_pylist()]
        for name in table.column_names
    }
    answer = "answer" if "label" in columns else "label"
    columns[answer] = [hf.preprocessing.tables.escape_formula(name) for name in names]
    csv.write_csv(pa.table(columns), out)


def _why_new(predictor: hf.PrivatePredictor) -> str:
    """Return a hint that recorded answers belong to the model that gave them."""
    if not predictor.other_models_spent():
        return ""
    return (
        ". Other models of this data set have answered: after a retraining, all questions are new"
    )


def _spent_text(predictor: hf.PrivatePredictor) -> str:
    """Return how much all analysts have spent together, and the unit of costs."""
    status = predictor.ledger.status(predictor.model.dataset)
    return (
        f"of the whole budget, {status.share_spent:.1%} is spent "
        f"(costs are in {status.unit}, {status.limit:.6g} in all)"
    )


def _print_status(text: str, as_json: bool) -> None:
    if not as_json:
        typer.echo(text, err=True)
