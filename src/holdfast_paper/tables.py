"""The tables of the documentation, generated from stored results.

`python -m holdfast_paper.tables RESULTS PAGE...` rewrites every block between
`<!-- table: NAME -->` and `<!-- end -->` of the pages from RESULTS/NAME.json, a file that
`holdfast reproduce NAME` has written.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from . import best_way, inference_budget, linear_heads, release
from .figure import Results

_BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def updated(page: str, results: Path) -> str:
    """Return the page with its tables generated from the results."""

    def table(match: re.Match[str]) -> str:
        name = match[2]
        found = json.loads((results / f"{name}.json").read_text("utf-8"))["results"]
        return f"{match[1]}{TABLES[name](found)}\n{match[3]}"

    return _BLOCK.sub(table, page)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}".removeprefix("0")


def _rows(lines: list[list[str]]) -> str:
    first, *rest = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([first, "|" + "---|" * len(lines[0]), *rest])


def _by_count(values: Mapping[int, float], counts: Sequence[int]) -> list[str]:
    return [_number(values.get(count)) for count in counts]


def inference_budget_table(results: Results) -> str:
    """Return accuracies by number of queries, per data set and budget, for pairs of methods."""
    figure, counts = inference_budget, inference_budget.REPORTED_QUERIES
    pairs = {
        "ours, boxes tuned: one model / T = 25": (figure.OURS, figure.OURS_25),
        "paper: smooth / global sensitivity": (figure.SMOOTH, figure.GLOBAL),
        "paper, T = 25: smooth / noisy argmax": (figure.SMOOTH_25, figure.ARGMAX),
    }
    lines = [["expected accuracy", *(f"Q = {count:,}" for count in counts)]]
    for name, by_epsilon in results["panels"].items():
        for epsilon, panel in by_epsilon.items():
            title = f"**{results['titles'][name]}, total ({float(epsilon):g}, 1e-5)**"
            lines.append([title, *[""] * len(counts)])
            curves = {
                method: dict(
                    zip(results["queries"], (value["mean"] for value in values), strict=True)
                )
                for method, values in panel["curves"].items()
            }
            lines.append(
                ["ours, head, public numbers alone", *_by_count(curves[figure.HEAD], counts)]
            )
            always = {
                method: value["mean"] for method, value in panel["any number of queries"].items()
            }
            for text, (first, second) in (
                ("any Q, public numbers alone: released head / DP-SGD", _RULES),
                ("any Q: DP-SGD tuned / the paper's settings", _DPSGD),
            ):
                cell = f"{_number(always[first])} / {_number(always[second])}"
                lines.append([text, cell, *[""] * (len(counts) - 1)])
            for text, (first, second) in pairs.items():
                both = zip(
                    _by_count(curves[first], counts), _by_count(curves[second], counts), strict=True
                )
                lines.append([text, *(f"{one} / {other}" for one, other in both)])
            public = _number(panel["public labels alone"])
            lines.append(["any Q: public labels alone", public, *[""] * (len(counts) - 1)])
    return _rows(lines)


_RULES = (inference_budget.RELEASED, inference_budget.RULE)
_DPSGD = (inference_budget.TUNED, inference_budget.PUBLISHED)


def linear_heads_table(results: Results) -> str:
    """Return accuracies of heads by number of queries, per data set, budget and choice."""
    counts = sorted(
        {
            count
            for by_epsilon in results["panels"].values()
            for panel in by_epsilon.values()
            for count in panel["queries"]
        }
    )
    lines = [["expected accuracy", *(f"Q = {count:,}" for count in counts)]]
    for name, by_epsilon in results["panels"].items():
        for epsilon, panel in by_epsilon.items():
            for method in (linear_heads.CHOSEN, linear_heads.DEFAULT):
                values = (row["accuracy"][method] for row in panel["rows"])
                by_count = dict(zip(panel["queries"], values, strict=True))
                title = f"{results['titles'][name]}, ({float(epsilon):g}, 1e-5), head, {method}"
                lines.append([title, *_by_count(by_count, counts)])
    return _rows(lines)


def release_table(results: Results) -> str:
    """Return accuracies per data set, epsilon and method."""
    methods = (release.RELEASE, release.TUNED, release.DESCENT, release.DPSGD)
    lines = [["", *methods, release.PUBLIC]]
    for name, panel in results["panels"].items():
        for epsilon, row in panel["rows"].items():
            cells = [_number(row[method]["accuracy"]) for method in methods]
            where = f"{results['titles'][name]}, ({float(epsilon):g}, 1e-5)"
            lines.append([where, *cells, _number(panel["public"])])
    return _rows(lines)


def patients_table(results: Results) -> str:
    """Return accuracies per budget and unit, by number of queries, and those of releases."""
    counts = results["queries"]
    columns = ["release, any Q", "with a public threshold"]
    lines = [["expected accuracy", *(f"Q = {count:,}" for count in counts), *columns]]
    for epsilon, panel in results["panels"].items():
        for unit, found in panel.items():
            cells = [_number(each["accuracy"]) for each in found["answers"]]
            more = [_number(value) for value in found["release"].values()]
            lines.append([f"({float(epsilon):g}, 1e-5), {unit}", *cells, *more])
    public = _number(results["public labels alone"])
    lines.append(["public labels alone, any Q", public, *[""] * (len(counts) + 1)])
    return _rows(lines)


def best_way_table(results: Results) -> str:
    """Return, per data set and epsilon, what every way reaches by number of queries."""
    lines: list[list[str]] = []
    for name, panel in results["panels"].items():
        reached, rows = best_way.as_plan(panel["reached"]), best_way.choices(panel)
        counts = sorted({row["queries"] for row in rows})
        if not lines:
            lines.append(["way", *(f"Q = {count:,}" for count in counts)])
        for epsilon in sorted({row["epsilon"] for row in rows}, reverse=True):
            lines.append(
                [f"**{results['titles'][name]}, ({epsilon:g}, 1e-5)**", *[""] * len(counts)]
            )
            here = [cell for cell in reached.cells if cell.epsilon == epsilon]
            for way in dict.fromkeys(cell.way for cell in here):
                by_count = {cell.queries: cell.accuracy for cell in here if cell.way == way}
                lines.append([way, *(_number(by_count[count]) for count in counts)])
            chosen = {row["queries"]: row for row in rows if row["epsilon"] == epsilon}
            cells = (
                f"{_SHORT.get(chosen[count]['chosen'], chosen[count]['chosen'])} "
                f"{_number(chosen[count]['reached'])}"
                for count in counts
            )
            lines.append(["*the planner's choice*", *cells])
    return _rows(lines)


_SHORT = {
    "answers from a head": "head",
    "release of the head": "release",
    "answers from an ensemble": "ensemble",
    "answers from boxes": "boxes",
    "public labels alone": "public labels",
}
TABLES: dict[str, Callable[[Results], str]] = {
    "release": release_table,
    "patients": patients_table,
    "best-way": best_way_table,
    "inference-budget": inference_budget_table,
    "linear-heads": linear_heads_table,
}


if __name__ == "__main__":
    folder, *pages = (Path(argument) for argument in sys.argv[1:])
    for page in pages:
        page.write_text(updated(page.read_text("utf-8"), folder), "utf-8")
