"""Figure 4: accuracy against the number of queries under one budget, compared with DP-SGD.

A model trained with DP-SGD answers any number of queries.
"""

from __future__ import annotations

from typing import Any

from holdfast.accounting import Budget
from holdfast.mechanisms import BudgetedResponse, LaplaceResponse, NoisyArgmax
from holdfast.planning import student_accuracy
from holdfast.planning.outcomes import make_cauchy, paper_epsilon
from holdfast.planning.planner import Trial
from holdfast.planning.ways import DpSgd, HeadAnswers, HeadRelease

from .bench import Bench
from .cells import certificates, choose, choose_dpsgd, dpsgd_accuracies, paper_dpsgd, seeds, summary
from .figure import (
    Claim,
    Figure,
    Results,
    accuracy_scale,
    constant_line,
    curve,
    grid,
    legend,
    not_run,
)
from .heads import private_stage, way_cells
from .run import TASKS, Run

BUDGETS = (Budget(10.0, 1e-5), Budget(1.0, 1e-5))
MEMBERS = 25
ENSEMBLE_QUERIES = 1000  # number of queries for which our ensemble's setting is chosen
_QUERIES = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
REPORTED_QUERIES = (1, 10, 100, 1000, 10_000)
GLOBAL, SMOOTH, ARGMAX, SMOOTH_25, OURS, OURS_25, PUBLISHED, TUNED, HEAD, RELEASED, RULE = (
    "paper: global sensitivity (replace)",
    "paper: smooth sensitivity (replace)",
    "paper: noisy argmax, T = 25 (replace)",
    "paper: smooth sensitivity, T = 25 (replace)",
    "ours: budgeted response (add_remove)",
    "ours: budgeted response, T = 25 (add_remove)",
    "DP-SGD, the paper's settings (add_remove)",
    "DP-SGD, tuned (add_remove)",
    "ours: head, public numbers alone (add_remove)",
    "ours: released head, public numbers alone (add_remove)",
    "DP-SGD, one public rule (add_remove)",
)


def compute(run: Run) -> Results:
    queries = (1, 100) if run.quick else _QUERIES
    benches, missing = run.benches()
    panels = {
        name: {str(budget.epsilon): _panel(run, bench, budget, queries) for budget in BUDGETS}
        for name, bench in benches.items()
    }
    titles = {name: bench.title for name, bench in benches.items()}
    about = {
        name: {
            "source": bench.task.source,
            "digest": bench.task.digest,
            "note": bench.note,
            "paper setting": bench.paper.describe(),
        }
        for name, bench in benches.items()
    }
    return {
        "queries": queries,
        "delta": BUDGETS[0].delta,
        "titles": titles,
        "about": about,
        "panels": panels,
        "not run": missing,
    }


def _panel(run: Run, bench: Bench, budget: Budget, queries: tuple[int, ...]) -> Results:
    store, members = run.store, 3 if run.quick else MEMBERS
    alone = [
        certificates(store, bench, bench.paper, seed=seed) for seed in seeds(bench, bench.paper)
    ]
    voting = [certificates(store, bench, bench.paper, members, seed) for seed in range(bench.seeds)]
    usual = choose(store, bench, BudgetedResponse(budget, ENSEMBLE_QUERIES))
    own_voting = [certificates(store, bench, usual, members, seed) for seed in range(bench.seeds)]
    curves: dict[str, list[Any]] = {
        name: [] for name in (GLOBAL, SMOOTH, ARGMAX, SMOOTH_25, OURS, OURS_25)
    }
    chosen = []
    for count in queries:
        each = paper_epsilon(budget, count)
        curves[GLOBAL].append(summary([found.expected(LaplaceResponse(each)) for found in alone]))
        curves[SMOOTH].append(
            summary([found.expected(make_cauchy(budget, count)) for found in alone])
        )
        curves[ARGMAX].append(summary([found.expected(NoisyArgmax(each)) for found in voting]))
        curves[SMOOTH_25].append(
            summary([found.expected(make_cauchy(budget, count)) for found in voting])
        )
        response = BudgetedResponse(budget, count)
        setting = choose(store, bench, response)
        own = [certificates(store, bench, setting, seed=seed) for seed in seeds(bench, setting)]
        curves[OURS].append(summary([found.expected(response) for found in own]))
        curves[OURS_25].append(summary([found.expected(response) for found in own_voting]))
        chosen.append(setting.describe())
    without_labels = _without_public_labels(run, bench, budget, queries)
    curves[HEAD] = without_labels.pop(HEAD)
    return {
        "curves": curves,
        "our settings, by queries": chosen,
        "our setting, T = 25": usual.describe(),
        "candidates of ours": len(bench.ours),
        **_any_queries(run, bench, budget, without_labels),
        "noise-free": {
            "paper": summary([found.accuracy for found in alone]),
            "paper, T = 25": summary([found.accuracy for found in voting]),
        },
        "public labels alone": student_accuracy(
            bench.task.tune_x, bench.task.tune_y, bench.task.query_x, bench.task.query_y
        ),
        "always the commoner class": max(
            float(bench.task.query_y.double().mean()), 1 - float(bench.task.query_y.double().mean())
        ),
    }


def _without_public_labels(
    run: Run, bench: Bench, budget: Budget, queries: tuple[int, ...]
) -> dict[str, Any]:
    """Return what is reached with settings that follow from public numbers alone."""
    rehearsals, seeds = [Trial(private_stage(bench))], 1 if run.quick else 5
    found: dict[str, Any] = {}
    for name, way in ((HEAD, HeadAnswers()), (RELEASED, HeadRelease()), (RULE, DpSgd(seeds))):
        counts = queries if name == HEAD else queries[:1]
        cells = way_cells(run, bench, "reached", way, budget, counts, rehearsals)
        values = [summary([cell["accuracy"]]) for cell in cells]
        found[name] = values if name == HEAD else values[0]
    return found


def _any_queries(run: Run, bench: Bench, budget: Budget, without_labels: dict[str, Any]) -> Results:
    """Return the models that answer any number of queries."""
    store, repeats = run.store, 1 if run.quick else 5
    tuned = choose_dpsgd(store, bench, budget)
    return {
        "candidates of DP-SGD": len(bench.dpsgd_tuned),
        "any number of queries": {
            **without_labels,
            PUBLISHED: summary(dpsgd_accuracies(store, bench, paper_dpsgd(bench), budget, repeats)),
            TUNED: summary(dpsgd_accuracies(store, bench, tuned, budget, repeats)),
        },
        "DP-SGD tuned setting": tuned.describe(),
    }


def draw(results: Results) -> Any:
    figure, axes = grid(len(BUDGETS), len(TASKS), 3.6)
    for row, budget in zip(axes, BUDGETS, strict=True):
        for axis, name in zip(row, TASKS, strict=True):
            if name not in results["panels"]:
                not_run(axis, name, results["not run"][name])
                continue
            panel = results["panels"][name][str(budget.epsilon)]
            for method, values in panel["curves"].items():
                curve(axis, results["queries"], method, values)
            for method, value in panel["any number of queries"].items():
                constant_line(axis, method, value)
            axis.axhline(
                panel["public labels alone"],
                color="C2",
                linewidth=1,
                linestyle=":",
                label="a model of the public tuning labels alone",
            )
            if panel["always the commoner class"] > 0.6:
                commoner = panel["always the commoner class"]
                axis.axhline(
                    commoner,
                    color="C6",
                    linewidth=1,
                    linestyle=":",
                    label="always the commoner class (OctMNIST)",
                )
            axis.set(
                xscale="log",
                title=f"{results['titles'][name]}, total {budget}",
                xlabel="queries Q",
                ylabel="expected accuracy",
            )
            axis.grid(alpha=0.3)
            accuracy_scale(axis)
    legend(figure, axes)
    return figure


def claims(results: Results) -> list[Claim]:
    listed = (
        [_more_queries_claim(results)]
        if "imdb" in results["panels"]
        else [Claim("IMDB: an order of magnitude more queries", None, "not run")]
    )
    for name, by_epsilon in results["panels"].items():
        for epsilon, panel in by_epsilon.items():
            listed += [
                _few_queries_claim(results, name, epsilon, panel),
                _public_numbers_claim(results, name, epsilon, panel),
                _private_needed_claim(results, name, epsilon, panel),
            ]
    return listed


def _more_queries_claim(results: Results) -> Claim:
    """Judge the claim on how many queries keep an accuracy within .02 of noise-free."""
    panel = results["panels"]["imdb"]["10.0"]
    goal = panel["noise-free"]["paper"]["mean"] - 0.02
    most = {}
    for method in (GLOBAL, SMOOTH, ARGMAX, SMOOTH_25, OURS):
        enough = [
            count
            for count, value in zip(results["queries"], panel["curves"][method], strict=True)
            if value["mean"] >= goal
        ]
        most[method] = max(enough, default=0)
    describe = ", ".join(f"{method.split(' (')[0]} {count:,}" for method, count in most.items())
    return Claim(
        "IMDB: one model with smooth sensitivity answers ten times as many queries as any other "
        "of the paper's methods, at (10, 1e-5)",
        most[SMOOTH] >= 10 * max(1, most[GLOBAL], most[ARGMAX], most[SMOOTH_25]),
        f"most queries tried with accuracy of at least {goal:.3f}: {describe}",
    )


def _few_queries_claim(results: Results, name: str, epsilon: str, panel: Results) -> Claim:
    rival = panel["any number of queries"][TUNED]
    ours = [value["mean"] for value in panel["curves"][OURS]]
    wins = next(
        (
            count
            for count, value in zip(results["queries"], ours, strict=True)
            if value <= rival["mean"]
        ),
        None,
    )
    since = "at no Q tried" if wins is None else f"or is level from Q = {wins:,} on"
    return Claim(
        f"{results['titles'][name]}, ({epsilon}, 1e-5): private prediction (ours, one model) "
        "beats private training for few queries",
        wins is None or wins > 1,
        f"tuned DP-SGD {rival['mean']:.4f} (standard deviation {rival['std']:.4f}) wins {since}; "
        f"ours: {_values_text(results, ours)}",
    )


def _public_numbers_claim(results: Results, name: str, epsilon: str, panel: Results) -> Claim:
    """Judge ours against DP-SGD if no setting was chosen with labels; not a claim of the paper."""
    rival = panel["any number of queries"][RULE]["mean"]
    released = panel["any number of queries"][RELEASED]["mean"]
    heads = [value["mean"] for value in panel["curves"][HEAD]]
    best = [max(released, value) for value in heads]
    return Claim(
        f"{results['titles'][name]}, ({epsilon}, 1e-5), asked by us: with public numbers alone, "
        "the better of answers and release is at most .005 below DP-SGD at every Q",
        min(best) >= rival - 0.005,
        f"DP-SGD by one public rule {rival:.4f}, released head {released:.4f}, "
        f"answers of a head: {_values_text(results, heads)}",
    )


def _private_needed_claim(results: Results, name: str, epsilon: str, panel: Results) -> Claim:
    """Judge whether the private records were needed at all; this is not a claim of the paper."""
    public, rival = panel["public labels alone"], panel["any number of queries"][TUNED]["mean"]
    ours = [value["mean"] for value in panel["curves"][OURS]]
    return Claim(
        f"{results['titles'][name]}, ({epsilon}, 1e-5), asked by us: the private records are "
        "needed: ours beats a model of the public labels alone at some Q",
        max(ours) > public,
        f"public labels alone {public:.4f}; ours at best {max(ours):.4f}; tuned DP-SGD {rival:.4f}",
    )


def _values_text(results: Results, values: list[float]) -> str:
    return ", ".join(
        f"Q = {count:,}: {value:.4f}"
        for count, value in zip(results["queries"], values, strict=True)
        if count in REPORTED_QUERIES
    )


FIGURE = Figure(
    "inference-budget",
    "Figure 4. Accuracy against the number of queries under one budget",
    compute,
    draw,
    claims,
    "Also at (1, 1e-5) and up to 10,000 queries. 'Public numbers alone' and 'one public rule' use "
    "no label but the private ones. The paper's curves use the paper's composition; "
    "the settings of ours and of tuned DP-SGD are chosen among equally many candidates, "
    "tried on public records alone. Under replace an exchange counts as one move, "
    "under add_remove as two: a curve under replace at epsilon "
    "protects about as much as one under add_remove at half of it.",
)
