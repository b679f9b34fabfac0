"""The commands `holdfast plan` and `holdfast schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import holdfast as hf

from .app import AsJson, app, command_context, print_json, refuse_output

_USUAL = ((10.0, 10), (10.0, 100), (10.0, 1000), (10.0, 10_000), (1.0, 100))
_EPSILONS, _QUERIES = (0.1, 1.0, 10.0), (1, 100, 10_000)


@app.command()
def plan(
    epsilon: Annotated[
        list[float] | None,
        typer.Option(help="Total epsilon; may be given several times."),
    ] = None,
    delta: Annotated[float, typer.Option(help="Total delta.")] = 1e-5,
    queries: Annotated[
        list[int] | None, typer.Option(help="Number of queries; may be given several times.")
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="About how many private records there are: a public number. If given, all ways to "
            "publish predictions are compared.",
        ),
    ] = None,
    features: Annotated[
        int | None,
        typer.Option(min=1, help="Number of features, if there is no --schema."),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(min=2, help="Number of classes, if there is no --schema (2).")
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option(help="A table of public records with labels, to rehearse every way on."),
    ] = None,
    private: Annotated[
        Path | None,
        typer.Option(help="The private table, in place of a public one; needs --keep-secret."),
    ] = None,
    keep_secret: Annotated[
        bool,
        typer.Option(
            "--keep-secret",
            help="Neither the plan nor the choice that follows from it will be published.",
        ),
    ] = False,
    label: Annotated[str | None, typer.Option(help="The column of labels in the table.")] = None,
    schema: Annotated[
        Path | None, typer.Option(help="The public .toml file with ranges, categories, classes.")
    ] = None,
    flips: Annotated[
        float,
        typer.Option(help="How often an answer may be wrong because of noise, for distances."),
    ] = 0.01,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The figure to write, with --records: a .png, .pdf or .svg file. By default "
            "plan.png, if several budgets or numbers of queries are compared."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the best way to publish predictions, before any budget is spent.

    Shows how stable a label must be for its private answer to be rarely wrong. With --records, also
    compares the expected accuracy of answers one by one, of a release of the head, and of rivals:
    rehearsed on a public table with labels, or as a rough guess from public numbers alone.
    """
    with command_context(as_json) as console:
        if records is None:
            given = {"public": public, "private": private, "features": features}
            used = next((name for name, value in given.items() if value is not None), None)
            if used is not None:
                raise hf.errors.InvalidInput(f"--{used} needs --records: about how many there are")
            targets = _targets(epsilon, queries, delta)
            rows = hf.planning.needed_distances(targets, classes=classes or 2, flips=flips)
            setting = f"{flips:g}, {classes or 2} classes, delta = {delta:g}"
            console.print(_distance_table(rows, setting))
            print_json(rows, as_json)
            return
        figure = out or Path("plan.png")
        refuse_output(figure, (".png", ".pdf", ".svg"))
        rules = None if schema is None else hf.Preprocessing.schema(schema)
        found = hf.plan(
            [hf.Budget(each, delta) for each in epsilon or _EPSILONS],
            list(queries or _QUERIES),
            records=records,
            features=features if rules is None else rules.width,
            classes=classes or (len(rules.classes) if rules is not None and rules.classes else 2),
            public=_labelled("public", public, label, rules),
            private=_labelled("private", private, label, rules),
            keep_secret=keep_secret,
            preprocessing=rules if public or private else None,
            progress=console.is_terminal and not as_json,
        )
        _show(console, found, delta)
        if out is not None or len(found.settings) > 1:
            title = f"Best way by expected accuracy, {records:,} records, delta {delta:g}"
            found.plot(figure, title=title)
            console.print(f"{figure}: which way wins where")
        print_json(found.as_dict(), as_json)


def _targets(
    epsilon: list[float] | None, queries: list[int] | None, delta: float
) -> list[tuple[hf.Budget, int]]:
    if not epsilon and not queries:
        return [(hf.Budget(total, delta), count) for total, count in _USUAL]
    return [
        (hf.Budget(total, delta), count)
        for total in epsilon or [10.0]
        for count in queries or [10, 100, 1000, 10_000]
    ]


def _labelled(
    option: str, path: Path | None, label: str | None, rules: hf.Preprocessing | None
) -> tuple[Any, Any] | None:
    """Return the records and labels of a table, or None if it is not given."""
    if path is None:
        return None
    if label is None or rules is None:
        raise hf.errors.InvalidInput(f"--{option} needs --label and --schema")
    if not rules.classes:
        raise hf.errors.InvalidInput("the schema names no classes; write classes = [...] in it")
    rows = hf.preprocessing.read_records(path, rules)
    return rows, hf.preprocessing.read_labels(rows, label, path, rules, len(rules.classes))


def _show(console: Console, found: hf.planning.Plan, delta: float) -> None:
    settings = found.settings
    table = Table(
        title=f"Expected accuracy, delta = {delta:g}",
        caption=f"based on {found.basis}; ~ was run, the others are closed forms; * is the choice"
        + ("" if found.commonest is None else f"; commonest label, always: {found.commonest:.3f}"),
        box=SIMPLE,
        padding=0,
        show_edge=False,
    )
    table.add_column("epsilon\nqueries", no_wrap=True)
    for budget, count in settings:
        table.add_column(f"{budget.epsilon:g}\n{_short(count)}", justify="right", no_wrap=True)
    chosen = [found.best(*setting).way for setting in settings]
    for way in dict.fromkeys(cell.way for cell in found.cells):
        cells = [cell for cell in found.cells if cell.way == way]  # in the order of the settings
        texts = [_cell_text(cell, way == best) for cell, best in zip(cells, chosen, strict=True)]
        table.add_row(way, *texts)
    table.add_section()
    needed = {(row["epsilon"], row["queries"]): row["distance"] for row in found.distances}
    distances = [str(needed[budget.epsilon, count]) for budget, count in settings]
    table.add_row("stable distance needed", *distances)
    console.print(table)
    for budget, count in settings if len(settings) <= 3 else ():
        console.print(found.recommendation(budget, count), highlight=False, markup=False)
    if len(settings) > 3:
        console.print("Give one --epsilon and one --queries for the commands to run.")
    for way, reason in found.skipped.items():
        console.print(f"{way} was left out: {reason}", markup=False)


def _short(count: int) -> str:
    return f"{count // 1000}k" if count >= 1000 and count % 1000 == 0 else f"{count:,}"


def _cell_text(cell: hf.planning.PlanCell, chosen: bool) -> str:
    if cell.accuracy is None:
        return "-"
    text = f"{cell.accuracy:.3f}".removeprefix("0")
    return ("~" if cell.how == "run" else "") + text + ("*" if chosen else "")


def _distance_table(rows: list[dict[str, Any]], setting: str) -> Table:
    table = Table(title=f"Distance needed for a share of flips below {setting}")
    for heading in ("total epsilon", "queries", *rows[0]["distance"]):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = []
        for needed in row["distance"].values():
            text = f"{needed:,}" if isinstance(needed, int) else str(needed)
            cells.append("-" if needed is None else text)
        table.add_row(f"{row['epsilon']:g}", f"{row['queries']:,}", *cells)
    return table


@app.command()
def schema(
    public: Annotated[
        Path,
        typer.Argument(
            help="A table of PUBLIC rows with the columns of the private one: .csv or .parquet."
        ),
    ],
    label: Annotated[str, typer.Option(help="The column that holds the label.")],
    out: Annotated[
        Path, typer.Option(help="The schema to write; an existing file is not replaced.")
    ] = Path("schema.toml"),
) -> None:
    """Draft a schema (ranges, categories, classes) from public rows, for you to check.

    Never run it on the private table: everything in a schema counts as public. Without public rows,
    write the schema from what you know about the columns.
    """
    with command_context(False) as console:
        refuse_output(out, (".toml",))
        if out.exists():
            raise hf.errors.InvalidInput(f"{out}: exists already; give another --out, or remove it")
        rows = hf.preprocessing.read_records(public, None)
        out.write_text(hf.preprocessing.draft_schema(rows, label, public.name), "utf-8")
        drafted = hf.Preprocessing.schema(out)
        console.print(
            f"{out}: {len(drafted.columns)} columns, {len(drafted.classes)} classes. Check every "
            "line: the guarantee takes all of it as public."
        )
