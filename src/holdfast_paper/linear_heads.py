"""Linear heads against one-step boxes and DP-SGD, on OctMNIST and IMDB; not in the paper."""

from __future__ import annotations

from typing import Any

import torch

from holdfast.accounting import Budget
from holdfast.mechanisms import BudgetedResponse

from .bench import Bench
from .cells import Evaluation
from .figure import Claim, Figure, Results, accuracy_scale, grid, not_run
from .heads import (
    HeadSetting,
    candidates,
    choose_head,
    default_setting,
    head_certificate,
)
from .run import Run

BUDGETS = (Budget(10.0, 1e-5), Budget(1.0, 1e-5), Budget(0.1, 1e-5))
_TASKS = ("octmnist", "imdb")
_QUERIES = (1, 10, 100, 1000, 10_000)
_MOST_PER_EPSILON = 10_000  # more queries than this leave nothing but noise
CHOSEN, DEFAULT = "chosen with public labels", "LinearRecipe.for_budget alone"
# The least accuracy that is aimed at, by task, epsilon and number of queries.
GOALS = {
    "octmnist": {
        "10.0": {1: 0.81, 10: 0.81, 100: 0.81, 1000: 0.81},
        "1.0": {1: 0.81, 10: 0.81, 100: 0.81},
    },
    "imdb": {"10.0": {1: 0.826, 100: 0.822, 1000: 0.815}, "1.0": {1: 0.82}, "0.1": {1: 0.81}},
}


def compute(run: Run) -> Results:
    queries = (1, 100) if run.quick else _QUERIES
    benches, missing = run.benches()
    panels = {
        name: {
            str(budget.epsilon): _panel(run, benches[name], budget, queries) for budget in BUDGETS
        }
        for name in _TASKS
        if name in benches
    }
    titles = {name: benches[name].title for name in panels}
    return {"panels": panels, "titles": titles, "not run": missing}


def _panel(run: Run, bench: Bench, budget: Budget, queries: tuple[int, ...]) -> Results:
    listed = candidates(bench)[:2] if run.quick else candidates(bench)
    rows: list[dict[str, Any]] = []
    counts = [count for count in queries if count <= _MOST_PER_EPSILON * budget.epsilon]
    for count in counts:
        response = BudgetedResponse(budget, count)
        settings: dict[str, HeadSetting] = {
            CHOSEN: choose_head(run.store, bench, listed, response),
            DEFAULT: default_setting(bench, budget, count),
        }
        found = {
            name: head_certificate(run.store, bench, setting) for name, setting in settings.items()
        }
        rows.append(
            {
                "settings": {name: setting.describe() for name, setting in settings.items()},
                "accuracy": {name: each.expected(response) for name, each in found.items()},
                "noise-free": {name: each.accuracy for name, each in found.items()},
                "median distance": {
                    name: int(each.certificate.distances.median()) for name, each in found.items()
                },
                "difference": _paired_difference(found, response),
            }
        )
    return {"queries": counts, "rows": rows, "candidates": len(listed)}


def _paired_difference(
    found: dict[str, Evaluation], response: BudgetedResponse
) -> dict[str, float]:
    """Return default minus chosen, per query, with a 95% interval."""
    default, chosen = (
        response.answer_probability(found[name].certificate, found[name].right)
        for name in (DEFAULT, CHOSEN)
    )
    gap: torch.Tensor = default - chosen
    width = 1.96 * float(gap.std()) / len(gap) ** 0.5
    mean = float(gap.mean())
    return {"mean": mean, "low": mean - width, "high": mean + width}


def draw(results: Results) -> Any:
    figure, axes = grid(1, len(_TASKS), 3.8)
    for axis, name in zip(axes[0], _TASKS, strict=True):
        if name not in results["panels"]:
            not_run(axis, name, results["not run"][name])
            continue
        for number, (epsilon, panel) in enumerate(results["panels"][name].items()):
            for method, style in ((CHOSEN, "o-"), (DEFAULT, "s--")):
                values = [row["accuracy"][method] for row in panel["rows"]]
                label = f"({epsilon}, 1e-5), {method}"
                axis.plot(panel["queries"], values, style, color=f"C{number}", label=label)
        axis.set(
            xscale="log",
            title=results["titles"][name],
            xlabel="queries Q",
            ylabel="expected accuracy",
        )
        axis.grid(alpha=0.3)
        accuracy_scale(axis)
    handles, names = axes[0][-1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)
    return figure


def claims(results: Results) -> list[Claim]:
    listed = []
    for name, by_epsilon in results["panels"].items():
        for epsilon, panel in by_epsilon.items():
            for count, row in zip(panel["queries"], panel["rows"], strict=True):
                goal = GOALS.get(name, {}).get(epsilon, {}).get(count)
                if goal is not None:
                    listed += _claims_of(results["titles"][name], epsilon, count, row, goal)
    return listed or [Claim("heads on OctMNIST and IMDB", None, "not run")]


def _claims_of(
    title: str, epsilon: str, queries: int, row: dict[str, Any], goal: float
) -> list[Claim]:
    best, plain, gap = row["accuracy"][CHOSEN], row["accuracy"][DEFAULT], row["difference"]
    where = f"{title}, ({epsilon}, 1e-5), Q = {queries:,}"
    return [
        Claim(
            f"{where}: a head chosen with public labels reaches {goal:g}",
            best >= goal,
            f"{best:.4f} ({row['settings'][CHOSEN]})",
        ),
        Claim(
            f"{where}: public numbers alone are at most .01 below",
            plain >= best - 0.01,
            f"{plain:.4f} ({row['settings'][DEFAULT]}); paired difference "
            f"{gap['mean']:+.4f}, 95% interval {gap['low']:+.4f} to {gap['high']:+.4f}",
        ),
    ]


FIGURE = Figure(
    "linear-heads",
    "Linear heads. Accuracy against the number of queries (not in the paper)",
    compute,
    draw,
    claims,
    "Heads on public features with public whitening; on OctMNIST, the public network's logits are "
    "the offset. No private record was used to choose a setting.",
)
