"""The table: students that learn from 100 labels, released by a teacher under (10, 1e-5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from holdfast.accounting import Budget
from holdfast.mechanisms import AnswerMechanism, BudgetedResponse, LaplaceResponse, NoisyArgmax
from holdfast.planning import student_accuracy
from holdfast.planning.outcomes import make_cauchy, paper_epsilon
from holdfast.planning.planner import Trial
from holdfast.planning.ways import HeadRelease

from .bench import Bench
from .cells import (
    STUDENT_POINTS,
    Evaluation,
    certificates,
    choose,
    choose_dpsgd,
    dpsgd,
    paper_dpsgd,
    seeds,
    summary,
)
from .figure import Claim, Figure, Results, grid
from .heads import default_setting, head_certificate, private_stage, way_cells
from .run import TASKS, Run

BUDGET = Budget(10.0, 1e-5)
QUERIES = STUDENT_POINTS
_DRAWS, _MEMBERS = 5, 25
PAPER = {  # in percent, as printed
    "single, global": (82.8, 12.7, 54.4),
    "single, smooth": (99.8, 18.7, 73.5),
    "ensemble, noisy argmax": (99.5, 14.1, 73.0),
    "ensemble, smooth": (98.1, 19.8, 71.7),
    "DP-SGD, the paper's settings": (1.0, 81.2, 70.5),
}
RELATIONS = {
    **dict.fromkeys(list(PAPER)[:4], "replace"),
    **dict.fromkeys(
        (
            "DP-SGD, the paper's settings",
            "ours, single, budgeted",
            "ours, ensemble, budgeted",
            "ours, head, budgeted",
            "ours, released head itself",
            "DP-SGD, tuned",
        ),
        "add_remove",
    ),
    "right labels (not private)": "none",
}
ROWS = tuple(RELATIONS)


def compute(run: Run) -> Results:
    benches, missing = run.benches()
    return {
        "columns": {name: _column(run, bench) for name, bench in benches.items()},
        "not run": missing,
        "paper": PAPER,
        "queries": QUERIES,
    }


def _column(run: Run, bench: Bench) -> dict[str, Any]:
    """Return the accuracies of students by kind of teacher.

    Each is a summary, over the teachers, of the mean accuracy over several draws of the labels.
    """
    found: dict[str, list[float]] = {row: [] for row in ROWS}
    draws = 1 if run.quick else _DRAWS
    for seed in range(bench.seeds):
        for row, release in _teachers(run, bench, seed):
            generators = [
                torch.Generator().manual_seed(1000 * seed + draw) for draw in range(draws)
            ]
            found[row].append(
                sum(_student(bench, release(generator)) for generator in generators) / draws
            )
    stage = [Trial(private_stage(bench))]
    (released,) = way_cells(run, bench, "reached", HeadRelease(), BUDGET, (1,), stage)
    found["ours, released head itself"] = [released["accuracy"]]
    return {row: summary(values) for row, values in found.items()}


def _teachers(
    run: Run, bench: Bench, seed: int
) -> Iterator[tuple[str, Callable[[torch.Generator], Tensor]]]:
    store, members = run.store, 3 if run.quick else _MEMBERS
    response = BudgetedResponse(BUDGET, QUERIES)
    own = choose(store, bench, response)
    alone, voting, ours, our_vote = (
        certificates(store, bench, setting, size, seed % len(seeds(bench, setting, size)), "points")
        for setting in (bench.paper, own)
        for size in (1, members)
    )
    each = paper_epsilon(BUDGET, QUERIES)
    yield "single, global", _answers(alone, LaplaceResponse(each))
    yield "single, smooth", _answers(alone, make_cauchy(BUDGET, QUERIES))
    yield "ensemble, noisy argmax", _answers(voting, NoisyArgmax(each))
    yield "ensemble, smooth", _answers(voting, make_cauchy(BUDGET, QUERIES))
    yield "ours, single, budgeted", _answers(ours, response)
    yield "ours, ensemble, budgeted", _answers(our_vote, response)
    yield "ours, head, budgeted", _answers(_head(run, bench), response)
    for row, rival in (
        ("DP-SGD, the paper's settings", paper_dpsgd(bench)),
        ("DP-SGD, tuned", choose_dpsgd(store, bench, BUDGET)),
    ):
        labels = dpsgd(store, bench, rival, BUDGET, seed).points
        yield row, _fixed(labels)
    yield "right labels (not private)", _fixed(bench.task.tune_y[:STUDENT_POINTS])


def _head(run: Run, bench: Bench) -> Evaluation:
    """Return the certificates of the points to label by a head, from public numbers alone."""
    points = (bench.task.tune_x[:STUDENT_POINTS], bench.task.tune_y[:STUDENT_POINTS])
    asked = replace(bench.task, query_x=points[0], query_y=points[1], query_groups=None)
    return head_certificate(run.store, bench, default_setting(bench, BUDGET, QUERIES), asked)


def _fixed(labels: Tensor) -> Callable[[torch.Generator], Tensor]:
    return lambda _: labels


def _answers(found: Evaluation, mechanism: AnswerMechanism) -> Callable[[torch.Generator], Tensor]:
    """Return a function that draws labels with the mechanism's probabilities.

    It uses a seeded generator: for reproducible experiments, not for release.
    """
    chance = mechanism.answer_probability(found.certificate, torch.ones_like(found.right))

    def draw(generator: torch.Generator) -> Tensor:
        return (torch.rand(len(chance), generator=generator, dtype=torch.float64) < chance).long()

    return draw


def _student(bench: Bench, released: Tensor) -> float:
    task = bench.task
    return student_accuracy(task.tune_x[: len(released)], released, task.query_x, task.query_y)


def draw(results: Results) -> Any:
    figure, axes = grid(1, 1, 4.6)
    figure.set_size_inches(12, 4.6)
    axis = axes[0, 0]
    axis.axis("off")
    text = []
    for row in ROWS:
        cells = [row, RELATIONS[row]]
        for number, name in enumerate(TASKS):
            value = results["columns"].get(name, {}).get(row)
            here = (
                "not run"
                if value is None
                else f"{100 * value['mean']:.1f} ± {100 * value['std']:.1f}"
            )
            cells += [
                here,
                f"{results['paper'][row][number]:.1f}" if row in results["paper"] else "-",
            ]
        text.append(cells)
    heads = [
        "teacher",
        "relation",
        *(head for name in ("Blobs", "OctMNIST", "IMDB") for head in (name, "paper")),
    ]
    table = axis.table(
        text,
        colLabels=heads,
        loc="center",
        cellLoc="center",
        colWidths=[0.25, 0.11, *[0.13, 0.08] * 3],
    )
    table.auto_set_font_size(False)
    table.set_fontsize(9)
    table.scale(1, 1.6)
    for (line, column), cell in table.get_celld().items():
        cell.set_edgecolor("lightgrey")
        cell.set_text_props(
            weight="bold" if line == 0 else "normal",
            color="grey" if column in (3, 5, 7) and line else "black",
        )
        if column == 0:
            cell.set_text_props(ha="left")
    return figure


def claims(results: Results) -> list[Claim]:
    listed = []
    for name, column in results["columns"].items():
        smooth, plain = column["single, smooth"]["mean"], column["single, global"]["mean"]
        listed.append(
            Claim(
                f"{name}: a student of the smooth single teacher is better than one of the "
                "global one",
                smooth > plain,
                f"smooth {smooth:.3f}, global {plain:.3f}, "
                f"ours {column['ours, single, budgeted']['mean']:.3f}, "
                f"n = {column['single, smooth']['n']}",
            )
        )
    return listed


FIGURE = Figure(
    "students",
    "Table. Accuracy (%) of students of 100 released labels, total (10, 1e-5)",
    compute,
    draw,
    claims,
    "Mean over three teachers of each kind and five draws of the labels; the standard deviation is "
    "that of the teachers' means. Students are logistic regressions; the points to label are "
    "public, and their own labels are used only in the row of right labels. "
    "The released head needs no student. The paper's DP-SGD on blobs (1.0) and its column of "
    "OctMNIST look misprinted.",
)
