"""The command `holdfast train`."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from .app import AsJson, emit, reporting
from .ledgers import open_ledger


def register(app: typer.Typer) -> None:
    app.command()(train)


def train(
    table: Annotated[Path, typer.Argument(help="The private records, one per row: a .csv or .parquet file.")],
    label: Annotated[str, typer.Option(help="The column that holds the label.")],
    schema: Annotated[Path, typer.Option(help="A public .toml file with ranges, categories, missing-value rules and classes.")],
    model: Annotated[str, typer.Option(help="linear, mlp:100, mlp:100,50, or package.module:factory.")] = "mlp:100",
    out: Annotated[Path, typer.Option(help="Where to save the certified model.")] = Path("model.holdfast"),
    neighbours: Annotated[str, typer.Option(help="add_remove, replace or remove.")] = "add_remove",
    max_distance: Annotated[int, typer.Option(min=1, help="Certify every distance from 1 to this.")] = 100,
    members: Annotated[int, typer.Option(min=1, help="Train an ensemble of this many members on disjoint parts.")] = 1,
    ids: Annotated[str | None, typer.Option("--id", help="The column that holds a unique id for each record.")] = None,
    public: Annotated[Path | None, typer.Option(help="A table of public records to fit whitening on.")] = None,
    shrinkage: Annotated[float, typer.Option(help="Shrinkage of the whitening.")] = 0.3,
    zero_output: Annotated[bool, typer.Option("--zero-output", help="Start from a network that answers exactly 0.")] = False,
    epochs: Annotated[int, typer.Option()] = 1,
    learning_rate: Annotated[float, typer.Option()] = 1.0,
    decay: Annotated[float, typer.Option(help="Learning rate of step n: learning_rate / (1 + decay * n).")] = 0.0,
    min_learning_rate: Annotated[float, typer.Option()] = 0.0,
    clip: Annotated[float, typer.Option(help="Bound on each entry of each record's gradient.")] = 0.05,
    batches: Annotated[int, typer.Option(help="Batches per epoch.")] = 1,
    batch_size: Annotated[
        int | None, typer.Option(help="The public number that each step divides by; required except under 'replace'.")
    ] = None,
    momentum: Annotated[float, typer.Option()] = 0.0,
    dampening: Annotated[float, typer.Option()] = 0.0,
    nesterov: Annotated[bool, typer.Option("--nesterov")] = False,
    weight_decay: Annotated[float, typer.Option()] = 0.0,
    loss: Annotated[str, typer.Option(help="cross_entropy, binary_cross_entropy or squared_error.")] = "cross_entropy",
    seed: Annotated[int, typer.Option(help="Seed of the initial weights, and of the hash that assigns batches and members.")] = 0,
    dataset: Annotated[str, typer.Option(help="Your name for the private data, to which its budget is granted.")] = "default",
    checkpoint: Annotated[Path | None, typer.Option(help="A file to resume from after an interruption; as private as the data.")] = None,
    sign: Annotated[str | None, typer.Option(help="Sign the file with the key of the ledger at this address.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only estimate time, memory and file size.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train on a table, and bound every model that neighbouring tables could have given.

    Neighbouring tables have up to --max-distance records added, removed or exchanged.
    """
    from ..training import Recipe

    with reporting(as_json) as console:
        recipe = Recipe(
            epochs, learning_rate, decay, clip, batches, batch_size, momentum, dampening, nesterov, min_learning_rate, weight_decay, loss, seed
        )  # fmt: skip
        preprocessing = _preprocessing(schema, public, shrinkage)
        x, y, names = _records(table, label, ids, preprocessing)
        outputs = 1 if loss == "binary_cross_entropy" else len(preprocessing.classes)
        make = partial(_start, model, preprocessing.width, outputs, seed, zero_output)
        settings: dict[str, Any] = {"neighbours": neighbours, "max_distance": max_distance, "ids": names}
        if dry_run:
            figures = _estimate(console, make, x, y, recipe, members, preprocessing, settings)
        else:
            settings |= {"dataset": dataset, "checkpoint": checkpoint, "preprocessing": preprocessing}
            figures = _train(console, make, x, y, recipe, members, settings, out, sign)
        emit(figures, as_json)


def _preprocessing(schema: Path, public: Path | None, shrinkage: float) -> Any:
    from ..errors import InvalidInput
    from ..preprocessing import Preprocessing
    from .tables import records

    preprocessing = Preprocessing.schema(schema)
    if not preprocessing.classes:
        raise InvalidInput(f'{schema}: the set of labels is public: write classes = ["...", "..."] in the schema')
    return preprocessing if public is None else preprocessing.whitened(records(public, preprocessing), shrinkage)


def _records(table: Path, label: str, ids: str | None, preprocessing: Any) -> tuple[Any, Any, list[Any] | None]:
    from ..errors import InvalidInput
    from ..records.tables import column
    from .tables import labels, some_records

    for name, role in ((label, "label"), (ids, "id")):
        if any(entry.name == name for entry in preprocessing.columns):
            raise InvalidInput(f"column {name!r} is the {role} and also a feature of the schema; remove it from the schema")
    x = some_records(table, preprocessing, label, ids)
    names = None if ids is None else column(x, ids, table)
    if names is not None and (None in names or "" in names):
        raise InvalidInput(f"{table}, column {ids!r}: a record without an id; give each record one")
    return x, labels(x, label, table, preprocessing, len(preprocessing.classes)), names


def _start(model: str, inputs: int, outputs: int, seed: int, zero: bool, member: int = 0) -> Any:
    from ..layers.initial import make_model, zero_output

    made = make_model(model, inputs, outputs, seed + member)
    return zero_output(made) if zero else made


def _train(
    console: Console, make: Any, x: Any, y: Any, recipe: Any, members: int, settings: dict[str, Any], out: Path, sign: str | None
) -> dict[str, Any]:
    from ..checks import refuse_unwritable
    from ..models.certified import train as train_model
    from ..models.ensemble import train_ensemble

    refuse_unwritable(out)
    ledger = None if sign is None else open_ledger(sign)
    if ledger is not None:
        ledger.names()  # raises if the ledger cannot sign, before any work is lost
    started = time.monotonic()
    settings["progress"] = console.is_terminal and not console.quiet
    trained = train_model(make(), x, y, recipe, **settings) if members == 1 else train_ensemble(make, x, y, recipe, members, **settings)
    trained.save(out, ledger=ledger)
    seconds = time.monotonic() - started
    console.print(f"{out}: {len(y):,} records, {members} model(s), every distance to {settings['max_distance']}, {seconds:.0f} s")
    console.print("[dim]The file is as private as the records. Next: holdfast certify, holdfast simulate.[/dim]")
    return {"file": str(out), "bytes": out.stat().st_size, "records": len(y), "members": members, "seconds": seconds}


def _estimate(
    console: Console, make: Any, x: Any, y: Any, recipe: Any, members: int, preprocessing: Any, settings: dict[str, Any]
) -> dict[str, Any]:
    from ..models.ensemble import prepare_members
    from ..training.diagnosis import estimate
    from ..training.preparation import check_class_count, prepare, preprocess

    features, _ = preprocess(preprocessing, x, None)
    if members == 1:
        jobs = [prepare(make(), features, y, recipe, **settings)[0]]
    else:
        jobs = [job for job, _ in prepare_members(make, features, y, recipe, members, **settings)]
    check_class_count(jobs[0], preprocessing)
    largest = estimate(max(jobs, key=lambda job: sum(job.private.count(batch) for batch in range(recipe.batches))))
    # Members are trained one after another, and saved in one file.
    seconds, file = largest.seconds * len(jobs), largest.file * len(jobs)
    memory = largest.memory + features.numel() * 12
    console.print(f"about {seconds:,.0f} s, {memory / 2**20:,.0f} MiB of memory, a file of {file / 2**20:,.1f} MiB")
    return {"seconds": seconds, "memory_bytes": memory, "file_bytes": file}
