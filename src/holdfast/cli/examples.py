"""The commands demo and example, and reproduce, which draws the paper's figures."""

from __future__ import annotations

import enum
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import holdfast as hf

from .app import AsJson, app, command_context, print_json


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("out"),
    max_distance: Annotated[
        int, typer.Option(min=1, help="Certify every distance from 1 to this.")
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """Train on the paper's blobs, and map how many records can change without changing a label."""
    with command_context(as_json) as console:
        print_json(hf.examples.run_demo(out, console, max_distance), as_json)


@app.command()
def example(
    name: Annotated[
        str, typer.Argument(help="blobs-far, blobs-close, credit-default or credit-scoring.")
    ] = "blobs-far",
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("example"),
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of the real tables (default: HOLDFAST_DATA); blobs need none."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write an example (train.csv, queries.csv, schema.toml) for trying the other commands."""
    with command_context(as_json) as console:
        paths = hf.examples.write_example(name, out, data)
        for path in paths.values():
            console.print(str(path))
        print_json({part: str(path) for part, path in paths.items()}, as_json)


class Which(enum.StrEnum):
    """The names of the paper's figures and table, and of our own figures."""

    ALL = "all"
    HEAT_MAP = "heat-map"
    SINGLE_MODEL = "single-model"
    ENSEMBLES = "ensembles"
    INFERENCE_BUDGET = "inference-budget"
    STUDENTS = "students"
    TIGHTNESS = "tightness"
    OCTMNIST = "octmnist"
    IMDB = "imdb"
    DEPTH = "depth"
    LINEAR_HEADS = "linear-heads"
    HEAD_DEFAULTS = "head-defaults"
    RELEASE = "release"
    BEST_WAY = "best-way"
    PATIENTS = "patients"


@app.command()
def reproduce(
    figure: Annotated[Which, typer.Argument(help="Which figure of the paper, or all.")],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Use a small part of the data and few settings, as a smoke test."
        ),
    ] = False,
    report: Annotated[
        bool,
        typer.Option(
            "--report",
            help="Also write report.html, with figures, claims and settings on one page.",
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="The data folder (default: the environment variable HOLDFAST_DATA)."),
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Download missing data and models if possible.")
    ] = False,
    embedder: Annotated[
        str | None,
        typer.Option(
            help=(
                "The language model that embeds the reviews: "
                "a folder or a name on Hugging Face (default: GPT-2)."
            )
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for pictures, numbers and cached results.")
    ] = Path("out/paper"),
    as_json: AsJson = False,
) -> None:
    """Reproduce the paper's figures, with holdfast's mechanisms for comparison.

    Also writes the numbers as JSON. An interrupted run resumes where it stopped.
    """
    from holdfast_paper.report import FIGURES, build
    from holdfast_paper.run import Run

    with command_context(as_json) as console:
        run = Run(out / "quick" if quick else out, console, data, quick, download, embedder)
        kept: dict[str, Any] = {}
        names = list(FIGURES) if figure is Which.ALL else [figure.value]
        for number, name in enumerate(names, 1):
            started = time.monotonic()
            console.print(f"[bold]{FIGURES[name].title}[/bold] ({number} of {len(names)})")
            kept[name] = FIGURES[name].reproduce(run)
            console.print(f"{run.out / name}.png, .pdf, .json ({time.monotonic() - started:.0f} s)")
        console.print(_claims(kept, quick))
        for reason in sorted(
            {str(why) for found in kept.values() for why in _missing(found["results"])}
        ):
            console.print(f"[yellow]not run:[/yellow] {reason}")
        if report:
            options = [
                *(["--quick"] if quick else []),
                *([f"--embedder {Path(embedder).name}"] if embedder else []),
            ]
            command = " ".join(["holdfast reproduce", figure.value, *options, "--report"])
            console.print(f"Report: {build(kept, run.out, command)}")
        console.print(
            "[dim]Accuracies are computed from private records: for the owner, not private.[/dim]"
        )
        print_json(kept, as_json)


def _missing(results: dict[str, Any]) -> list[str]:
    missing = results.get("not run", [])
    return list(missing.values()) if isinstance(missing, dict) else [missing] if missing else []


def _claims(kept: dict[str, Any], quick: bool) -> Table:
    table = Table(
        title=f"The paper's claims, reproduced{' (a quick run: not for reports)' if quick else ''}",
        show_lines=True,
    )
    for heading in ("claim", "here", "found"):
        table.add_column(heading)
    for found in kept.values():
        for claim in found["claims"]:
            verdict = {True: "[green]true[/green]", False: "[red]not true[/red]", None: "not run"}[
                claim["holds"]
            ]
            table.add_row(claim["claim"], verdict, claim["found"])
    return table
