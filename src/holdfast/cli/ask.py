"""What leaves a saved model: the commands ask, release, statement and card."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

import holdfast as hf

from .app import (
    DEFAULT_LEDGER,
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
    pass


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
            verb = "would cost" if about.new <= about.fits else "would be refused: they cost"
            _print_status(
                f"{analyst}: {about.new:,} new answers {verb} {about.cost:.6g} of the "
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


@app.command()
def release(
    model: Annotated[Path, typer.Argument(help="A linear head saved by `holdfast train`.")],
    out: Annotated[Path, typer.Option(help="Where to save the released head.")] = Path(
        "released.holdfast"
    ),
    epsilon: Annotated[
        float | None,
        typer.Option(help="Epsilon to spend on this release; all that is left if not given."),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Delta to spend on this release, with --epsilon.")
    ] = None,
    signed: Annotated[
        bool,
        typer.Option("--signed", help="Refuse a head that was not signed with this ledger's key."),
    ] = False,
    ledger: LedgerAddress = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """Release a linear head with noise, after charging the budget.

    The released head may be published and answers any number of queries free of charge: `holdfast
    ask released.holdfast table.csv`. If the same head was released before with the same options,
    that release is written again, free of charge. Exit code 3 means that the budget does not
    suffice.
    """
    with command_context(as_json) as console:
        refuse_output(out, (".holdfast",))
        if out.resolve() == model.resolve():
            raise hf.errors.InvalidInput(f"--out {out}: this would overwrite the trained head")
        if (epsilon is None) != (delta is None):
            raise hf.errors.InvalidInput("give both --epsilon and --delta, or neither")
        head = load_model(model)
        if not isinstance(head, hf.heads.CertifiedHead):
            raise hf.errors.InvalidInput(
                f"{model}: only a single linear head can be released; train one with "
                "`holdfast train --model linear --members 1`"
            )
        part = None if epsilon is None or delta is None else hf.Budget(epsilon, delta)
        opened = hf.Ledger(ledger)
        released = hf.release_head(head, opened, budget=part, require_signature=signed)
        released.save(out)
        left = opened.status(head.dataset)
        about = released.release
        console.print(
            f"{out}: the released head, under {released.guarantee}.\n"
            f"Noise of standard deviation {about.noise:.3g} in each of "
            f"{released.weights.numel():,} weights; {left.remaining / left.limit:.0%} of the "
            f"budget is left.\n`holdfast ask {out} TABLE` gives its labels, free of charge; "
            f"`holdfast statement {out}` writes its privacy statement."
        )
        print_json(
            {"out": str(out), "guarantee": str(released.guarantee), **about.as_json()}, as_json
        )


Model = Annotated[
    Path, typer.Argument(help="A model saved by `holdfast train` or `holdfast release`.")
]
Out = Annotated[
    Path | None, typer.Option(help="The .md file to write; standard output if not given.")
]


@app.command()
def statement(
    model: Model,
    out: Annotated[
        Path | None,
        typer.Option(help="The .md or .json file to write; standard output if not given."),
    ] = None,
    ledger: LedgerAddress = DEFAULT_LEDGER,
    as_json: AsJson = False,
) -> None:
    """Write the privacy statement of a model's answers, or of a released head, in Markdown.

    With --json, or for a .json file, it is written as data, with the fields of NIST SP 800-226.

    It says what is promised, what was declared public, and what is not protected.
    """
    with command_context(False) as console:
        if out is not None:
            hf.checks.refuse_unwritable(out)
        trained = hf.load(model)
        as_data = as_json or (out is not None and out.suffix == ".json")
        if isinstance(trained, hf.ReleasedHead):
            if as_data:
                raise hf.errors.InvalidInput(
                    f"{model}: the statement of a released head is written in Markdown only; "
                    "leave out --json"
                )
            text = trained.statement()
        elif as_data:
            facts = hf.serving.statement_facts(trained, hf.Ledger(ledger).status(trained.dataset))
            text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
        else:
            text = hf.serving.privacy_statement(trained, hf.Ledger(ledger).status(trained.dataset))
        _write_text(text, out, console)


@app.command()
def card(model: Model, out: Out = None, ledger: LedgerAddress = DEFAULT_LEDGER) -> None:
    """Write a model card in the format of Hugging Face: public facts and the privacy statement."""
    with command_context(False) as console:
        if out is not None:
            refuse_output(out, (".md",))
        trained = hf.load(model)
        status = None
        if not isinstance(trained, hf.ReleasedHead):
            status = hf.Ledger(ledger).status(trained.dataset)
        _write_text(hf.serving.model_card(trained, status), out, console)


def _write_text(text: str, out: Path | None, console: Console) -> None:
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, "utf-8")
        console.print(str(out))
