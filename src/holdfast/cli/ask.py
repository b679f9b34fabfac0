"""The command `holdfast ask`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from .app import AsJson, emit, refuse_output, reporting
from .ledgers import DEFAULT, LedgerAddress, open_ledger


def register(app: typer.Typer) -> None:
    app.command()(ask)


def ask(
    model: Annotated[Path, typer.Argument(help="A model saved by `holdfast train`.")],
    table: Annotated[str, typer.Argument(help="Queries, one per row: a .csv or .parquet file; - reads a CSV from standard input.")] = "-",
    row: Annotated[str | None, typer.Option(help='One query as JSON, instead of a table: \'{"age": 40, "job": "nurse"}\'.')] = None,
    analyst: Annotated[str, typer.Option(help="Who asks. The same question by the same analyst is charged only once.")] = "owner",
    preview: Annotated[bool, typer.Option("--preview", help="Only show the cost; nothing is answered or charged.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the answers to this .csv file.")] = None,
    signed: Annotated[bool, typer.Option("--signed", help="Refuse a model that was not signed with this ledger's key.")] = False,
    ledger: LedgerAddress = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Answer queries privately, after charging the budget.

    Prints one label per line to standard output. Exit code 3 means that the budget does not
    suffice.
    """
    from ..serving import PrivatePredictor
    from .tables import class_names, load_model

    with reporting(as_json):
        if out is not None:
            refuse_output(out, (".csv",))
        trained = load_model(model)
        queries = _queries(table, row, trained)
        predictor = PrivatePredictor(trained, open_ledger(ledger), require_signature=signed)
        if preview:
            about = predictor.preview(queries, analyst)
            emit(asdict(about), as_json)
            _say(f"{about.new:,} new answers would cost {about.cost:.6g}; {_left(about)}", as_json)
            return
        answers = predictor.ask(queries, analyst)
        answers = answers if isinstance(answers, list) else [answers]
        names = class_names(trained, [answer.label for answer in answers])
        if out is not None:
            _write(names, out)
        elif not as_json:
            typer.echo("\n".join(names))
        emit([{**asdict(answer), "label": name} for name, answer in zip(names, answers, strict=True)], as_json)
        cost = sum(answer.cost for answer in answers)
        _say(
            f"{len(answers):,} answers, cost {cost:.6g}; {_left(predictor.preview(queries, analyst))} more",
            as_json,
        )


def _queries(table: str, row: str | None, trained: Any) -> Any:
    from ..errors import InvalidInput
    from .tables import some_records, standard_input

    if row is None and table != "-":
        return some_records(Path(table), trained.preprocessing)
    if row is None:
        if sys.stdin is None:
            raise InvalidInput("standard input is closed; give a table, or --row")
        return standard_input(sys.stdin.buffer.read(), trained.preprocessing)
    if table != "-":
        raise InvalidInput("give either a table or --row, not both")
    try:
        cells = json.loads(row)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"--row: not JSON ({error})") from None
    if not isinstance(cells, dict) or not cells:
        raise InvalidInput(f"--row {row}: expected one record, for example '{{\"age\": 40}}'")
    return cells


def _write(names: list[str], out: Path) -> None:
    import pyarrow as pa
    from pyarrow import csv

    from .tables import harmless

    csv.write_csv(pa.table({"label": [harmless(name) for name in names]}), out)


def _left(about: Any) -> str:
    return f"{about.remaining:.6g} is left, enough for {about.fits:,}"


def _say(text: str, as_json: bool) -> None:
    if not as_json:
        typer.echo(text, err=True)
