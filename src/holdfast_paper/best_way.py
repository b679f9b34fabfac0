"""The map: which way to publish predictions is best, over epsilon and queries; not in the paper."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from holdfast.accounting import Budget
from holdfast.planning.planner import (
    CLOSE,
    PUBLIC,
    Plan,
    PlanCell,
    Trial,
    add_legend,
    draw_panel,
)
from holdfast.planning.ways import WAYS, PublicLabels

from .bench import Bench
from .figure import Claim, Figure, Results, grid, not_run
from .heads import private_stage, public_rehearsals, way_cells
from .run import Run

EPSILONS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
QUERIES = (1, 10, 100, 1000, 10_000, 100_000)
DELTA = 1e-5
_TASKS = ("octmnist", "imdb")
_SEEDS = 5
_ENOUGH = 0.9  # of the cells, in which the choice must be close to the best


def compute(run: Run) -> Results:
    benches, missing = run.benches()
    epsilons, queries = ((1.0,), (1, 100)) if run.quick else (EPSILONS, QUERIES)
    panels = {
        name: _panel(run, benches[name], epsilons, queries) for name in _TASKS if name in benches
    }
    titles = {name: benches[name].title for name in panels}
    return {"panels": panels, "titles": titles, "not run": missing}


def _panel(
    run: Run, bench: Bench, epsilons: tuple[float, ...], queries: tuple[int, ...]
) -> Results:
    ways = [way(seeds=1 if run.quick else _SEEDS) for way in WAYS]
    on_private = [Trial(private_stage(bench))]
    on_public = list(public_rehearsals(bench))[: 1 if run.quick else None]
    found: dict[str, Any] = {"reached": [], "planned": []}
    for epsilon in epsilons:
        budget = Budget(epsilon, DELTA)
        for way in ways:
            for kind, rehearsals in (("reached", on_private), ("planned", on_public)):
                found[kind] += way_cells(run, bench, kind, way, budget, queries, rehearsals)
    return found


def as_plan(cells: list[dict[str, Any]]) -> Plan:
    """Return stored cells as a plan, to choose from."""
    return Plan(tuple(PlanCell(delta=DELTA, **cell) for cell in cells), PUBLIC, (), {})


def choices(panel: Results, *, without: str = "") -> list[dict[str, Any]]:
    """Return, per cell, the planner's choice, what it reaches, and what the best ways reach.

    The way `without` is left out of the comparison.
    """
    planned, reached = (
        as_plan([cell for cell in panel[kind] if cell["way"] != without])
        for kind in ("planned", "reached")
    )
    rows = []
    for budget, queries in reached.settings:
        truth = {cell.way: cell.accuracy for cell in reached.at(budget, queries)}
        chosen = planned.best(budget, queries).way
        best = reached.at(budget, queries)[0]
        ours = next(cell for cell in reached.at(budget, queries) if cell.ours)
        rows.append(
            {
                "epsilon": budget.epsilon,
                "queries": queries,
                "chosen": chosen,
                "reached": truth[chosen],
                "best": best.way,
                "best accuracy": best.accuracy,
                "best of ours": ours.way,
                "ours": ours.accuracy,
            }
        )
    return rows


_COMPARISONS = {"all ways": "", "without public labels alone": PublicLabels.name}


def draw(results: Results) -> Any:
    figure, axes = grid(len(_COMPARISONS), len(_TASKS), 3.0)
    ways = set()
    for line, (comparison, without) in zip(axes, _COMPARISONS.items(), strict=True):
        for axis, name in zip(line, _TASKS, strict=True):
            if name not in results["panels"]:
                not_run(axis, name, results["not run"][name])
                continue
            wins = {
                (row["epsilon"], row["queries"]): SimpleNamespace(
                    way=row["best"], accuracy=row["best accuracy"]
                )
                for row in choices(results["panels"][name], without=without)
            }
            ways |= {win.way for win in wins.values()}
            draw_panel(axis, f"{results['titles'][name]}, {comparison}", wins)
    add_legend(figure, ways)
    return figure


def claims(results: Results) -> list[Claim]:
    listed = []
    for name, panel in results["panels"].items():
        for comparison, without in _COMPARISONS.items():
            where = f"{results['titles'][name]}, {comparison}"
            listed += _claims_of(where, choices(panel, without=without))
    return listed or [Claim("ways on OctMNIST and IMDB", None, "not run")]


def _claims_of(where: str, rows: list[dict[str, Any]]) -> list[Claim]:
    far = [row for row in rows if row["reached"] < row["best accuracy"] - CLOSE]
    behind = [row for row in rows if row["ours"] < row["best accuracy"] - CLOSE]
    return [
        Claim(
            f"{where}: the planner's choice is within {CLOSE:g} of the best way in 90% of the "
            "cells",
            len(far) <= (1.0 - _ENOUGH) * len(rows),
            f"{len(rows) - len(far)} of {len(rows)}" + _listed(far, "chosen", "reached"),
        ),
        Claim(
            f"{where}: nothing outside holdfast beats the best of ours by more than {CLOSE:g}",
            not behind,
            f"{len(behind)} of {len(rows)} cells" + _listed(behind, "best of ours", "ours"),
        ),
    ]


def _listed(rows: list[dict[str, Any]], way: str, accuracy: str) -> str:
    if not rows:
        return ""
    texts = (
        f"({row['epsilon']:g}, Q = {row['queries']:,}): {row[way]} {row[accuracy]:.4f} against "
        f"{row['best']} {row['best accuracy']:.4f}"
        for row in rows
    )
    return "; " + "; ".join(texts)


FIGURE = Figure(
    "best-way",
    "Which way to publish predictions is best, by budget and number of queries (not in the paper)",
    compute,
    draw,
    claims,
    "Expected accuracy of the best way in every cell. All ways see the same public features and "
    "follow one public rule; the planner's choice was made on public labels. Public labels alone "
    "cost no privacy, and few applications have thousands of them.",
)
