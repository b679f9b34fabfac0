"""The map: which way to publish predictions is best, over epsilon and queries; not in the paper."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch

from holdfast.accounting import Budget
from holdfast.planning.map import add_legend, draw_panel
from holdfast.planning.planner import CLOSE, PUBLIC, Plan, PlanCell
from holdfast.planning.rehearsal import Rehearsal, rehearse_on
from holdfast.planning.stage import Stage
from holdfast.planning.ways import WAYS, Way
from holdfast.preprocessing import Preprocessing

from .bench import Bench
from .cells import mechanisms_digest
from .figure import Claim, Figure, Results, grid, not_run
from .heads import LIMIT, SHRINKAGE, whitened_encoder
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
    on_private = [Rehearsal(private_stage(bench))]
    on_public = list(public_rehearsals(bench))
    found: dict[str, Any] = {"reached": [], "planned": []}
    for epsilon in epsilons:
        budget = Budget(epsilon, DELTA)
        for way in ways:
            for kind, rehearsals in (("reached", on_private), ("planned", on_public)):
                found[kind] += _cells(run, bench, kind, way, budget, queries, rehearsals)
    return found


def _cells(
    run: Run,
    bench: Bench,
    kind: str,
    way: Way,
    budget: Budget,
    queries: tuple[int, ...],
    rehearsals: list[Rehearsal],
) -> list[dict[str, Any]]:
    """Return what a way reaches, or is planned to reach, per number of queries."""

    def compute() -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        found = {}
        for count in queries:
            each = [one.accuracy(way, budget, count) for one in rehearsals]
            known = [accuracy for accuracy in each if accuracy is not None]
            found[str(count)] = statistics.fmean(known) if len(known) == len(each) else None
        return found, {}

    config = {
        "cell": f"way, {kind}",
        "task": bench.task.digest,
        "start": bench.public_start,
        "way": way.name,
        "seeds": way.seeds,
        "budget": [budget.epsilon, budget.delta],
        "queries": list(queries),
        "mechanisms": mechanisms_digest(),
    }
    title = f"{bench.task.name}, {way.name}, {budget}, {kind}"
    figures = run.store.cell(title, config, compute).figures
    about = {"epsilon": budget.epsilon, "way": way.name, "ours": way.ours, "how": way.how}
    return [{**about, "queries": count, "accuracy": figures[str(count)]} for count in queries]


def _features(bench: Bench, x: torch.Tensor) -> torch.Tensor:
    """Return records as the ways see them: whitened, if no pre-trained layers do that."""
    rules = _whitening(bench)
    return x if rules is None else rules.apply(x)


def _whitening(bench: Bench) -> Preprocessing | None:
    if bench.pretrained is not None:
        return None
    return Preprocessing.whitening(bench.task.public_x, shrinkage=SHRINKAGE, limit=LIMIT)


def _options(bench: Bench) -> tuple[dict[str, Any], float | None]:
    """Return the public modules of heads, and the public scale of their features."""
    rules = _whitening(bench)
    if rules is not None:
        return {}, None if rules.typical_norm is None else 1.0 / rules.typical_norm
    encoder, scale = whitened_encoder(bench, bench.task.public_x, SHRINKAGE)
    return {"encoder": encoder, "offset": bench.pretrained}, scale


def private_stage(bench: Bench) -> Stage:
    """Return the private records and the test queries."""
    task = bench.task
    options, scale = _options(bench)
    x, queries, public = (_features(bench, x) for x in (task.x, task.query_x, task.tune_x))
    return Stage(
        x,
        task.y.numpy(),
        queries,
        task.query_y.numpy(),
        (public, task.tune_y.numpy()),
        len(task.y),
        2,
        "add_remove",
        options,
        scale,
    )


def public_rehearsals(bench: Bench) -> Iterable[Rehearsal]:
    options, scale = _options(bench)
    x, y = _features(bench, bench.task.tune_x), bench.task.tune_y.numpy()
    return rehearse_on(x, y, bench.records, 2, "add_remove", options, scale)


def as_plan(cells: list[dict[str, Any]]) -> Plan:
    """Return stored cells as a plan, to choose from."""
    return Plan(tuple(PlanCell(delta=DELTA, **cell) for cell in cells), PUBLIC, (), {})


def choices(panel: Results) -> list[dict[str, Any]]:
    """Return, per cell, the planner's choice, what it reaches, and what the best ways reach."""
    planned, reached = as_plan(panel["planned"]), as_plan(panel["reached"])
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


def draw(results: Results) -> Any:
    figure, axes = grid(1, len(_TASKS), 3.6)
    ways = set()
    for axis, name in zip(axes[0], _TASKS, strict=True):
        if name not in results["panels"]:
            not_run(axis, name, results["not run"][name])
            continue
        rows = choices(results["panels"][name])
        wins = {
            (row["epsilon"], row["queries"]): SimpleNamespace(
                way=row["best"], accuracy=row["best accuracy"]
            )
            for row in rows
        }
        ways |= {win.way for win in wins.values()}
        draw_panel(axis, results["titles"][name], wins)
    add_legend(figure, ways)
    return figure


def claims(results: Results) -> list[Claim]:
    listed = []
    for name, panel in results["panels"].items():
        title, rows = results["titles"][name], choices(panel)
        far = [row for row in rows if row["reached"] < row["best accuracy"] - CLOSE]
        listed.append(
            Claim(
                f"{title}: the planner's choice is within {CLOSE:g} of the best way in 90% of "
                "the cells",
                len(far) <= (1.0 - _ENOUGH) * len(rows),
                f"{len(rows) - len(far)} of {len(rows)}" + _listed(far, "chosen", "reached"),
            )
        )
        behind = [row for row in rows if row["ours"] < row["best accuracy"] - CLOSE]
        listed.append(
            Claim(
                f"{title}: no rival beats the best of ours by more than {CLOSE:g}",
                not behind,
                f"{len(behind)} of {len(rows)} cells" + _listed(behind, "best of ours", "ours"),
            )
        )
    return listed or [Claim("ways on OctMNIST and IMDB", None, "not run")]


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
    "follow one public rule; the planner's choice was made on public labels.",
)
