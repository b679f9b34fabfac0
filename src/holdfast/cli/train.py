"""The command `holdfast train`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

import holdfast as hf

from .app import AsJson, app, command_context, print_json, warn_of_visible_password

if TYPE_CHECKING:
    from torch import nn


def public_rules(schema: Path, public: Path | None, shrinkage: float) -> hf.Preprocessing:
    """Return the rules of the schema, whitened by public rows if there are any."""
    preprocessing = hf.Preprocessing.schema(schema)
    if not preprocessing.classes:
        raise hf.errors.InvalidInput(
            f'{schema}: the set of labels is public: write classes = ["...", "..."] in the schema'
        )
    if public is None:
        return preprocessing
    rows = hf.preprocessing.read_records(public, preprocessing, empty=True)
    return preprocessing.whitened(rows, shrinkage=shrinkage)


def warn_of_private_draft(schema: Path, table: Path) -> None:
    """Warn if the schema says that it was drafted from the private table itself."""
    names = [table.name, *(file.name for file in table.glob("*.parquet"))]
    text = schema.read_text("utf-8")
    drafted = next((name for name in names if text.startswith(f"# Drafted from {name},")), None)
    if drafted is not None:
        hf.errors.warn(
            f"{schema} was drafted from {drafted}, the private table: its ranges, categories "
            "and classes count as public, and the guarantee does not cover them. Draft it from "
            "public rows, or write it from what is known about the columns"
        )


def private_records(
    table: Path,
    label: str,
    ids: str | None,
    person: str | None,
    rules: hf.Preprocessing,
    **options: Any,
) -> hf.Dataset:
    """Open the private records: Parquet is read in parts while training, CSV at once."""
    reader = hf.Dataset.csv
    if table.is_dir() or table.suffix == ".parquet":
        reader = hf.Dataset.parquet
    return reader(table, label=label, id=ids, person=person, preprocessing=rules, **options)


def refuse_options(options: dict[str, Any], why: str) -> None:
    """Raise InvalidInput if an option that does not apply was given."""
    given = next((name for name, value in options.items() if value is not None), None)
    if given is not None:
        raise hf.errors.InvalidInput(f"--{given.replace('_', '-')} is {why}")


def needed_distance(rules: hf.Preprocessing, budget: hf.Budget, queries: int) -> int:
    """Return how stable a label must be for noise to change its answer in 0.1% of cases."""
    classes, ways = (
        len(rules.classes),
        ("budgeted response", "stable response, optimal composition"),
    )
    (row,) = hf.planning.needed_distances([(budget, queries)], classes=classes, flips=0.001)
    found = row["distance"][ways[0] if budget.delta > 0.0 else ways[1]]
    if not isinstance(found, int):
        raise hf.errors.InvalidInput(
            f"{queries:,} queries under {budget} need labels that are stable at a distance of "
            f"{found}: plan for fewer queries or a larger budget, or give --max-distance"
        )
    return max(1, found)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class HeadJob:
    """A job that trains a linear head, with a recipe chosen for a budget and a number of queries.

    `options` are settings of the recipe, or None if they are not given. A `goal` without a number
    of queries is a release.
    """

    table: hf.Dataset
    options: dict[str, Any]
    batch_size: int | None
    goal: tuple[hf.Budget, int | None]
    settings: dict[str, Any]

    @property
    def relation(self) -> hf.Neighbours:
        return self.table.relation(self.settings["neighbours"])

    @cached_property
    def recipe(self) -> hf.LinearRecipe:
        rules = self.table.preprocessing
        assert rules is not None
        size = self.batch_size
        if size is None:
            if not self.relation.exchanges:
                raise hf.errors.InvalidInput(
                    "--batch-size is missing: under 'add_remove' the number of "
                    f"{self.relation.unit}s is private; say about how many there are, as a round "
                    "number that you would choose without looking at the table, for example "
                    "--batch-size 1000"
                )
            count = self.table.persons if self.table.per_person else self.table.count
            if count is None:
                raise hf.errors.InvalidInput(
                    "--batch-size is missing: persons in Parquet files are not counted beforehand; "
                    "give about how many there are"
                )
            size = -(-count // (self.settings["members"] * self.options["batches"]))
        budget, queries = self.goal
        public = {
            "features": rules.width,
            "records": size * self.options["batches"],
            "classes": len(rules.classes),
            "budget": budget,
            "neighbours": self.relation,
        }
        if queries is None:
            chosen = hf.LinearRecipe.for_release(**public)
        else:
            chosen = hf.LinearRecipe.for_budget(queries=queries, **public)
        return replace(chosen, batch_size=size, **_given(self.options))

    def train(self, progress: bool) -> hf.models.CertifiedModel:
        return hf.train_linear(
            self.table,
            self.recipe,
            multiclass=self._multiclass,
            progress=progress,
            **self.settings,
        )

    @property
    def _multiclass(self) -> str:
        return "softmax" if self.goal[1] is None else "pairs"

    def estimate(self) -> hf.models.Estimate:
        return hf.heads.estimate_linear_training(
            self.table,
            self.recipe,
            multiclass=self._multiclass,
            **self.settings,
        )

    @property
    def next_step(self) -> str:
        return "holdfast release" if self.goal[1] is None else "holdfast certify, holdfast simulate"

    @property
    def hint(self) -> str:
        rules = self.table.preprocessing
        if rules is not None and rules.whitener is not None:
            return ""
        return "Public rows of the same kind (--public) usually make a head more accurate."

    def text(self) -> str:
        recipe, (budget, queries) = self.recipe, self.goal
        chosen = f"travel {recipe.travel:g} and clip {recipe.clip:g}"
        if self.options["travel"] is not None or self.options["clip"] is not None:
            return chosen
        purpose = "a release" if queries is None else f"{queries:,} queries"
        return f"{chosen} for {purpose} under {budget}"


@dataclass(frozen=True)
class NetworkJob:
    """A job that trains a network, or an ensemble of networks, with boxes.

    `options` are settings of the recipe, or None if they are not given.
    """

    table: hf.Dataset
    options: dict[str, Any]
    model: str
    zero_output: bool
    checkpoint: Path | None
    settings: dict[str, Any]

    @cached_property
    def recipe(self) -> hf.Recipe:
        return hf.Recipe(**_given(self.options))

    def _make(self, member: int) -> nn.Module:
        rules, recipe = self.table.preprocessing, self.recipe
        assert rules is not None
        outputs = recipe.loss_function.outputs(len(rules.classes))
        inputs = sum(column.width for column in rules.columns)
        made = hf.layers.make_model(self.model, inputs, outputs, recipe.seed + member)
        return hf.zero_output(made) if self.zero_output else made

    def train(self, progress: bool) -> hf.models.CertifiedModel:
        settings = {**self.settings, "checkpoint": self.checkpoint, "progress": progress}
        if settings["members"] > 1:
            return hf.train_ensemble(self._make, self.table, self.recipe, **settings)
        del settings["members"]
        return hf.train(self._make(0), self.table, self.recipe, **settings)

    next_step = "holdfast certify, holdfast simulate"

    def estimate(self) -> hf.models.Estimate:
        settings = {name: each for name, each in self.settings.items() if name != "engine"}
        return hf.networks.estimate_training(self._make, self.table, self.recipe, **settings)

    @property
    def hint(self) -> str:
        return ""

    def text(self) -> str:
        return f"every distance to {self.settings['max_distance'] or 100}"


@app.command()
def train(
    table: Annotated[
        Path,
        typer.Argument(
            help="The private records, one per row: a .csv or .parquet file, or a folder of "
            ".parquet files. Parquet may be larger than memory."
        ),
    ],
    label: Annotated[str, typer.Option(help="The column that holds the label.")],
    schema: Annotated[
        Path,
        typer.Option(
            help="A public .toml file with ranges, categories, missing-value rules and classes."
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            help="linear (a convex head), or a network: linear-box, mlp:100, mlp:100,50, or "
            "package.module:factory."
        ),
    ] = "linear",
    out: Annotated[Path, typer.Option(help="Where to save the certified model.")] = Path(
        "model.holdfast"
    ),
    neighbours: Annotated[
        str, typer.Option(help="add_remove or replace; for networks also remove.")
    ] = "add_remove",
    max_distance: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Certify every distance from 1 to this. For networks, what the budget needs by "
            "default (100 if none is given); a head has no limit by default.",
        ),
    ] = None,
    members: Annotated[
        int, typer.Option(min=1, help="Train an ensemble of this many members on disjoint parts.")
    ] = 1,
    ids: Annotated[
        str | None, typer.Option("--id", help="The column that holds a unique id for each record.")
    ] = None,
    person: Annotated[
        str | None,
        typer.Option(
            help="The column that holds the owner of each record: privacy is then per person, and "
            "--batch-size counts persons."
        ),
    ] = None,
    max_records_per_person: Annotated[
        int | None,
        typer.Option(min=1, help="Use at most this many records of a person, chosen by a hash."),
    ] = None,
    public: Annotated[
        Path | None, typer.Option(help="A table of public records to fit whitening on.")
    ] = None,
    shrinkage: Annotated[float, typer.Option(help="Shrinkage of the whitening.")] = 0.3,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="About how many records, or persons, there are (per batch and member): a public "
            "number that each step divides by; required except under 'replace'.",
        ),
    ] = None,
    batches: Annotated[int, typer.Option(help="Batches per epoch.")] = 1,
    clip: Annotated[
        float | None,
        typer.Option(
            help="For a head, the bound on the norm of each record's gradient, chosen for the "
            "budget by default; for networks that on each entry, 0.05 by default."
        ),
    ] = None,
    weight_decay: Annotated[float, typer.Option(help="Weight decay.")] = 0.0,
    epsilon: Annotated[
        float | None,
        typer.Option(help="The total epsilon that the settings are chosen for (head: 1)."),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="The total delta that the settings are chosen for (1e-5)."),
    ] = None,
    queries: Annotated[
        int | None,
        typer.Option(min=1, help="The number of queries that the budget has to last for (100)."),
    ] = None,
    release: Annotated[
        bool,
        typer.Option(
            "--release",
            help="Head: choose travel and clip for `holdfast release`, instead of for answers.",
        ),
    ] = False,
    travel: Annotated[
        float | None,
        typer.Option(help="Head: the sum of the step sizes; chosen for the budget by default."),
    ] = None,
    zero_output: Annotated[
        bool,
        typer.Option("--zero-output", help="Network: start from one that answers exactly 0."),
    ] = False,
    epochs: Annotated[
        int | None, typer.Option(help="Network: passes over the records (1).")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Network: learning rate of the first step (1).")
    ] = None,
    decay: Annotated[
        float | None,
        typer.Option(help="Network: learning rate of step n: learning_rate / (1 + decay * n)."),
    ] = None,
    min_learning_rate: Annotated[
        float | None, typer.Option(help="Network: the learning rate never falls below this.")
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Network: momentum of SGD.")] = None,
    dampening: Annotated[
        float | None, typer.Option(help="Network: dampening of the momentum.")
    ] = None,
    nesterov: Annotated[
        bool, typer.Option("--nesterov", help="Network: use Nesterov momentum.")
    ] = False,
    loss: Annotated[
        str | None,
        typer.Option(
            help="Network: cross_entropy (default), binary_cross_entropy or squared_error."
        ),
    ] = None,
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
        typer.Option(
            help="Network: a file to resume from after an interruption; as private as the data."
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(help="Where the work runs: local, or ray (the cluster at RAY_ADDRESS)."),
    ] = "local",
    sign: Annotated[
        str | None,
        typer.Option(
            callback=warn_of_visible_password,
            help="Sign the file with the key of the ledger at this address.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only estimate time, memory and file size.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train on a table, and bound every model that neighbouring tables could have given.

    By default, trains a linear head with settings chosen for a budget: --epsilon, --delta and
    --queries, or --release.
    """
    with command_context(as_json, checkpoint) as console:
        _refuse_contradictions(neighbours, ids, person, max_records_per_person)
        rules = public_rules(schema, public, shrinkage)
        warn_of_private_draft(schema, table)
        options = {"name": dataset, "max_records_per_person": max_records_per_person}
        private = private_records(table, label, ids, person, rules, **options)
        shared: dict[str, Any] = {"batches": batches, "weight_decay": weight_decay, "seed": seed}
        settings: dict[str, Any] = {
            "neighbours": neighbours,
            "max_distance": max_distance,
            "members": members,
            "engine": engine,
        }
        network = {
            "epochs": epochs,
            "learning_rate": learning_rate,
            "decay": decay,
            "min_learning_rate": min_learning_rate,
            "momentum": momentum,
            "dampening": dampening,
            "nesterov": nesterov or None,
            "loss": loss,
        }
        total = hf.Budget(1.0 if epsilon is None else epsilon, 1e-5 if delta is None else delta)
        job: HeadJob | NetworkJob
        if model == "linear":
            others = {"zero_output": zero_output or None, "checkpoint": checkpoint}
            refuse_options(
                network | others, "for networks: leave it out, or choose another --model"
            )
            if release:
                refuse_options({"queries": queries}, "not needed: a release answers any number")
            goal = (total, None if release else queries or 100)
            shared |= {"clip": clip, "travel": travel}
            job = HeadJob(private, shared, batch_size, goal, settings)
        else:
            head = {"travel": travel, "release": release or None}
            refuse_options(head, "for a head: leave it out, or use --model linear")
            if max_distance is None and (epsilon, delta, queries) != (None, None, None):
                settings["max_distance"] = needed_distance(rules, total, queries or 100)
            network |= shared | {"clip": clip, "batch_size": batch_size}
            job = NetworkJob(private, network, model, zero_output, checkpoint, settings)
        figures = _estimate(console, job) if dry_run else _train(console, job, out, sign)
        print_json(figures, as_json)


def _refuse_contradictions(
    neighbours: str, ids: str | None, person: str | None, most: int | None
) -> None:
    """Raise InvalidInput if options on persons contradict each other."""
    relation = hf.Neighbours.of(neighbours)
    if person is None and (most is not None or relation.unit == "person"):
        option = "--max-records-per-person" if most is not None else f"--neighbours {neighbours}"
        raise hf.errors.InvalidInput(f"{option} needs --person, the column of owners")
    if person is not None and ids is not None:
        raise hf.errors.InvalidInput(
            "--id and --person: with persons, records are assigned by their owner; leave out --id"
        )
    if person is not None and relation is hf.Neighbours.REMOVE:
        raise hf.errors.InvalidInput(
            "--neighbours remove is not available with --person: use add_remove, whose "
            "certificates hold for removals too"
        )


def _train(
    console: Console, job: HeadJob | NetworkJob, out: Path, sign: str | None
) -> dict[str, Any]:
    hf.checks.refuse_unwritable(out)
    ledger = None if sign is None else hf.Ledger(sign)
    if ledger is not None:
        ledger.names()  # raises if the ledger cannot sign, before any work is lost
    replaced = out.exists()
    started = time.monotonic()
    trained = job.train(console.is_terminal and not console.quiet)
    trained.save(out, ledger=ledger)
    seconds = time.monotonic() - started
    records, members, persons = job.table.count, len(trained.members), job.table.persons
    unit = "per person" if job.table.per_person else "per record"
    unit += "" if persons is None else f", {persons:,} persons"
    console.print(
        f"{out}: {records:,} records, private {unit}, {members} model(s), {job.text()}, "
        f"{seconds:.0f} s"
    )
    if replaced:
        console.print(
            f"[dim]{out} was replaced. Answers are recorded per model: questions that the old one "
            "has answered will be charged again.[/dim]"
        )
    if job.hint:
        console.print(f"[dim]{job.hint}[/dim]")
    console.print(f"[dim]The file is as private as the records. Next: {job.next_step}.[/dim]")
    return {
        "file": str(out),
        "bytes": out.stat().st_size,
        "records": records,
        "persons": persons,
        "members": members,
        "neighbours": trained.neighbours.value,
        "seconds": seconds,
        "recipe": trained.recipe.as_dict(),
    }


def _estimate(console: Console, job: HeadJob | NetworkJob) -> dict[str, Any]:
    about = job.estimate()
    console.print(
        f"{job.text()}: about {about.seconds:,.0f} s, "
        f"{about.memory / 2**20:,.0f} MiB of memory, a file of {about.file / 2**20:,.1f} MiB"
    )
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if about.memory > machine:
        hf.errors.warn(
            f"this is more memory than the machine has ({machine / 2**20:,.0f} MiB): lower "
            "--max-distance, train a smaller network, or use a larger machine"
        )
    return {
        "seconds": about.seconds,
        "memory_bytes": about.memory,
        "machine_bytes": machine,
        "file_bytes": about.file,
    }
