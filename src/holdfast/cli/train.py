"""The command `holdfast train`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

import holdfast as hf

from .app import AsJson, app, command_context, print_json

if TYPE_CHECKING:
    from torch import Tensor, nn


@app.command()
def train(
    table: Annotated[
        Path, typer.Argument(help="The private records, one per row: a .csv or .parquet file.")
    ],
    label: Annotated[str, typer.Option(help="The column that holds the label.")],
    schema: Annotated[
        Path,
        typer.Option(
            help="A public .toml file with ranges, categories, missing-value rules and classes."
        ),
    ],
    model: Annotated[
        str, typer.Option(help="linear, mlp:100, mlp:100,50, or package.module:factory.")
    ] = "mlp:100",
    out: Annotated[Path, typer.Option(help="Where to save the certified model.")] = Path(
        "model.holdfast"
    ),
    neighbours: Annotated[str, typer.Option(help="add_remove, replace or remove.")] = "add_remove",
    max_distance: Annotated[
        int, typer.Option(min=1, help="Certify every distance from 1 to this.")
    ] = 100,
    members: Annotated[
        int, typer.Option(min=1, help="Train an ensemble of this many members on disjoint parts.")
    ] = 1,
    ids: Annotated[
        str | None, typer.Option("--id", help="The column that holds a unique id for each record.")
    ] = None,
    public: Annotated[
        Path | None, typer.Option(help="A table of public records to fit whitening on.")
    ] = None,
    shrinkage: Annotated[float, typer.Option(help="Shrinkage of the whitening.")] = 0.3,
    zero_output: Annotated[
        bool, typer.Option("--zero-output", help="Start from a network that answers exactly 0.")
    ] = False,
    epochs: Annotated[int, typer.Option(help="Passes over the records.")] = 1,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of the first step.")] = 1.0,
    decay: Annotated[
        float, typer.Option(help="Learning rate of step n: learning_rate / (1 + decay * n).")
    ] = 0.0,
    min_learning_rate: Annotated[
        float, typer.Option(help="The learning rate never falls below this.")
    ] = 0.0,
    clip: Annotated[
        float, typer.Option(help="Bound on each entry of each record's gradient.")
    ] = 0.05,
    batches: Annotated[int, typer.Option(help="Batches per epoch.")] = 1,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="The public number that each step divides by; required except under 'replace'."
        ),
    ] = None,
    momentum: Annotated[float, typer.Option(help="Momentum of SGD.")] = 0.0,
    dampening: Annotated[float, typer.Option(help="Dampening of the momentum.")] = 0.0,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Use Nesterov momentum.")] = False,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of SGD.")] = 0.0,
    loss: Annotated[
        str, typer.Option(help="cross_entropy, binary_cross_entropy or squared_error.")
    ] = "cross_entropy",
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the initial weights, and of the hash that assigns batches and members."
        ),
    ] = 0,
    dataset: Annotated[
        str, typer.Option(help="Your name for the private data, to which its budget is granted.")
    ] = "default",
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="A file to resume from after an interruption; as private as the data."),
    ] = None,
    sign: Annotated[
        str | None, typer.Option(help="Sign the file with the key of the ledger at this address.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only estimate time, memory and file size.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train on a table, and bound every model that neighbouring tables could have given.

    Neighbouring tables have up to --max-distance records added, removed or exchanged.
    """
    with command_context(as_json) as console:
        recipe = hf.Recipe(
            epochs=epochs,
            learning_rate=learning_rate,
            decay=decay,
            clip=clip,
            batches=batches,
            batch_size=batch_size,
            momentum=momentum,
            dampening=dampening,
            nesterov=nesterov,
            min_learning_rate=min_learning_rate,
            weight_decay=weight_decay,
            loss=loss,
            seed=seed,
        )
        preprocessing = _preprocessing(schema, public, shrinkage)
        x, y, names = _records(table, label, ids, preprocessing)
        inputs = sum(column.width for column in preprocessing.columns)
        outputs = recipe.loss_function.outputs(len(preprocessing.classes))

        def make(member: int) -> nn.Module:
            made = hf.layers.make_model(model, inputs, outputs, seed + member)
            return hf.zero_output(made) if zero_output else made

        settings = {
            "neighbours": neighbours,
            "max_distance": max_distance,
            "ids": names,
            "preprocessing": preprocessing,
        }
        if dry_run:
            figures = _estimate(console, _Job(make, x, y, recipe, members, settings))
        else:
            settings |= {"dataset": dataset, "checkpoint": checkpoint}
            job = _Job(make, x, y, recipe, members, settings)
            figures = _train(console, job, out, sign)
        print_json(figures, as_json)


@dataclass(frozen=True)
class _Job:
    """A training job: how to make the models, the records, the recipe and other settings."""

    make: Callable[[int], nn.Module]
    x: Any
    y: Tensor
    recipe: hf.Recipe
    members: int
    settings: dict[str, Any]

    def train(self, progress: bool) -> hf.models.CertifiedModel:
        settings = {**self.settings, "progress": progress}
        if self.members == 1:
            return hf.train(self.make(0), self.x, self.y, self.recipe, **settings)
        return hf.train_ensemble(
            self.make, self.x, self.y, self.recipe, members=self.members, **settings
        )


def _preprocessing(schema: Path, public: Path | None, shrinkage: float) -> hf.Preprocessing:
    preprocessing = hf.Preprocessing.schema(schema)
    if not preprocessing.classes:
        raise hf.errors.InvalidInput(
            f'{schema}: the set of labels is public: write classes = ["...", "..."] in the schema'
        )
    if public is None:
        return preprocessing
    rows = hf.preprocessing.read_records(public, preprocessing, empty=True)
    return preprocessing.whitened(rows, shrinkage=shrinkage)


def _records(
    table: Path, label: str, ids: str | None, preprocessing: hf.Preprocessing
) -> tuple[Any, Tensor, list[Any] | None]:
    for name, role in ((label, "label"), (ids, "id")):
        if any(entry.name == name for entry in preprocessing.columns):
            raise hf.errors.InvalidInput(
                f"column {name!r} is the {role} and also a feature of the schema; "
                "take it out of the schema"
            )
    x = hf.preprocessing.read_records(table, preprocessing, label, ids)
    names = None if ids is None else hf.records.column(x, ids, table)
    if names is not None and (None in names or "" in names):
        raise hf.errors.InvalidInput(f"{table}, column {ids!r}: a record without an id")
    classes = len(preprocessing.classes)
    return x, hf.preprocessing.read_labels(x, label, table, preprocessing, classes), names


def _train(console: Console, job: _Job, out: Path, sign: str | None) -> dict[str, Any]:
    hf.checks.refuse_unwritable(out)
    ledger = None if sign is None else hf.Ledger(sign)
    if ledger is not None:
        ledger.names()  # raises if the ledger cannot sign, before any work is lost
    started = time.monotonic()
    job.train(console.is_terminal and not console.quiet).save(out, ledger=ledger)
    seconds = time.monotonic() - started
    records, farthest = len(job.y), job.settings["max_distance"]
    console.print(
        f"{out}: {records:,} records, "
        f"{job.members} model(s), every distance to {farthest}, {seconds:.0f} s"
    )
    console.print(
        "[dim]The file is as private as the records. Next: "
        "holdfast certify, holdfast simulate.[/dim]"
    )
    return {
        "file": str(out),
        "bytes": out.stat().st_size,
        "records": records,
        "members": job.members,
        "seconds": seconds,
    }


def _estimate(console: Console, job: _Job) -> dict[str, Any]:
    about = hf.models.estimate_training(
        job.make, job.x, job.y, job.recipe, members=job.members, **job.settings
    )
    console.print(
        f"about {about.seconds:,.0f} s, "
        f"{about.memory / 2**20:,.0f} MiB of memory, a file of {about.file / 2**20:,.1f} MiB"
    )
    return {"seconds": about.seconds, "memory_bytes": about.memory, "file_bytes": about.file}
