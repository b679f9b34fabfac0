"""The command `holdfast diagnose`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

import holdfast as hf

from .app import NOT_PRIVATE, AsJson, app, command_context, load_model, print_json


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
            assert isinstance(first, hf.models.CertifiedHead)
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
    useless = hf.certificates.usefulness.why_useless(given, right, names, trained.is_network)
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


def _about_head(head: hf.models.CertifiedHead) -> str:
    recipe, unit = head.recipe, head.neighbours.unit
    return (
        f"One {unit} moves the weights by at most {head.ball.per_move:.3g}, which follows from the "
        f"recipe alone: travel {recipe.travel:g} x clip {recipe.clip:g} / batch size "
        f"{recipe.batch_size:,}.\n"
        "- Labels are more stable with less travel or clip, and fit better with more; "
        "`holdfast train --epsilon --delta --queries` chooses both for a budget.\n"
        f"- More {unit}s (and a batch size to match) help both; so does whitening with public rows."
    )
