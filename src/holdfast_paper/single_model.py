"""Figure 2: accuracy of a single model's private answers against epsilon per answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.accounting import Budget
from holdfast.mechanisms import CauchyResponse, LaplaceResponse, StableResponse
from holdfast.planning.planner import Trial
from holdfast.planning.ways import HeadAnswers, HeadRelease

from .cells import certificates, choose, seeds, summary
from .figure import (
    Claim,
    Figure,
    Results,
    accuracy_scale,
    curve,
    grid,
    legend,
    noise_free_line,
    not_run,
)
from .heads import private_stage, way_cells
from .run import TASKS, Run

DELTA = 1e-5  # of the released head
GLOBAL, SMOOTH, OURS, HEAD, RELEASED = (
    "paper: global sensitivity (replace)",
    "paper: smooth sensitivity (replace)",
    "ours: stable response (add_remove)",
    "ours: head, public numbers alone (add_remove)",
    "ours: released head, public numbers alone (add_remove)",
)


def compute(run: Run) -> Results:
    epsilons = [float(value) for value in np.logspace(-2, 1, 5 if run.quick else 20)]
    benches, missing = run.benches()
    panels = {}
    for name, bench in benches.items():
        published = [
            certificates(run.store, bench, bench.paper, seed=seed)
            for seed in seeds(bench, bench.paper)
        ]
        curves: dict[str, list[Any]] = {name: [] for name in (GLOBAL, SMOOTH, OURS, HEAD, RELEASED)}
        stage = [Trial(private_stage(bench))]
        chosen = []
        for epsilon in epsilons:
            curves[GLOBAL].append(
                summary([found.expected(LaplaceResponse(epsilon)) for found in published])
            )
            curves[SMOOTH].append(
                summary([found.expected(CauchyResponse(epsilon)) for found in published])
            )
            response = StableResponse(epsilon)
            setting = choose(run.store, bench, response)
            own = [
                certificates(run.store, bench, setting, seed=seed) for seed in seeds(bench, setting)
            ]
            curves[OURS].append(summary([found.expected(response) for found in own]))
            chosen.append(setting.describe())
            for method, way, delta in (
                (HEAD, HeadAnswers(), 0.0),
                (RELEASED, HeadRelease(), DELTA),
            ):
                budget = Budget(epsilon, delta)
                (cell,) = way_cells(run, bench, "reached", way, budget, (1,), stage)
                curves[method].append(summary([cell["accuracy"]]))
        panels[name] = {
            "title": bench.title,
            "source": bench.task.source,
            "digest": bench.task.digest,
            "note": bench.note,
            "queries": len(bench.task.query_y),
            "paper setting": bench.paper.describe(),
            "our settings, by epsilon": chosen,
            "candidates": len(bench.ours),
            "plain": summary([found.accuracy for found in published]),
            "curves": curves,
        }
    return {"epsilons": epsilons, "panels": panels, "not run": missing}


def draw(results: Results) -> Any:
    figure, axes = grid(1, len(TASKS))
    for axis, name in zip(axes[0], TASKS, strict=True):
        if name not in results["panels"]:
            not_run(axis, name, results["not run"][name])
            continue
        panel = results["panels"][name]
        for method, values in panel["curves"].items():
            curve(axis, results["epsilons"], method, values)
        noise_free_line(axis, panel["plain"]["mean"])
        axis.set(
            xscale="log",
            title=f"{panel['title']} ({panel['queries']:,} queries)",
            xlabel="epsilon of one answer",
            ylabel="expected accuracy",
        )
        axis.grid(alpha=0.3)
        accuracy_scale(axis)
    legend(figure, axes)
    return figure


def sufficient_epsilon(epsilons: list[float], values: list[Any], goal: float) -> float | None:
    """Return the smallest epsilon from which accuracy stays at goal - 0.01 or above, or None."""
    enough = [value["mean"] >= goal - 0.01 for value in values]
    return next((epsilons[i] for i in range(len(enough)) if all(enough[i:])), None)


def claims(results: Results) -> list[Claim]:
    listed = []
    for panel in results["panels"].values():
        goal = panel["plain"]["mean"]
        least = {
            method: sufficient_epsilon(results["epsilons"], panel["curves"][method], goal)
            for method in (GLOBAL, SMOOTH, OURS)
        }
        describe = ", ".join(
            f"{method.split(' (')[0]} {'not by 10' if value is None else f'{value:.2g}'}"
            for method, value in least.items()
        )
        smooth, global_epsilon = least[SMOOTH], least[GLOBAL]
        holds = smooth is not None and (
            smooth <= 1.0 if global_epsilon is None else global_epsilon >= 10 * smooth
        )
        listed.append(
            Claim(
                f"{panel['title']}: smooth sensitivity keeps noise-free accuracy at an epsilon "
                "an order of magnitude lower than global sensitivity",
                holds,
                f"smallest epsilon within .01 of {goal:.3f}: {describe}",
            )
        )
    return listed


FIGURE = Figure(
    "single-model",
    "Figure 2. One model: accuracy against the epsilon of one answer",
    compute,
    draw,
    claims,
    "Every k is run, so that the distance can be used privately. Ours: the setting is chosen at "
    "every epsilon on public records, except for heads, whose settings follow from public numbers. "
    "A released head answers any number of queries, under (epsilon, 1e-5).",
)
