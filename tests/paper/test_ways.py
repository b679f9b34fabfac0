"""The figures on ways: their claims, and the tables of the documentation that follow from them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from holdfast_paper import best_way, inference_budget, linear_heads, patients, release
from holdfast_paper.tables import (
    TABLES,
    inference_budget_table,
    linear_heads_table,
    patients_table,
    updated,
)

DOCS = Path(__file__).parents[2] / "docs"


def cells(head: float, rival: float | None) -> list[dict]:
    return [
        {"epsilon": 1.0, "queries": 10, "way": way, "ours": ours, "how": "run", "accuracy": value}
        for way, ours, value in (("answers from a head", True, head), ("DP-SGD", False, rival))
    ]


@pytest.mark.parametrize(
    ("planned", "reached", "holds"),
    [
        ((0.8, 0.7), (0.8, 0.7), [True, True]),
        ((0.7, 0.8), (0.8, 0.7), [False, True]),  # the plan was wrong
        ((0.7, 0.8), (0.7, 0.8), [True, False]),  # the rival is better
        ((0.8, 0.804), (0.8, 0.804), [True, True]),
    ],
)
def test_the_claims_of_the_map(
    planned: tuple[float, float], reached: tuple[float, float], holds: list[bool]
) -> None:
    panel = {"planned": cells(*planned), "reached": cells(*reached)}
    results = {"panels": {"imdb": panel}, "titles": {"imdb": "IMDB"}}
    assert [claim.holds for claim in best_way.claims(results)] == 2 * holds


def test_public_labels_are_left_out_of_the_second_comparison() -> None:
    public = {"epsilon": 1.0, "queries": 10, "way": "public labels alone", "ours": False}
    reached = [*cells(0.8, 0.7), {**public, "how": "run", "accuracy": 0.9}]
    results = {
        "panels": {"imdb": {"planned": reached, "reached": reached}},
        "titles": {"imdb": "IMDB"},
    }
    assert [claim.holds for claim in best_way.claims(results)] == [True, False, True, True]


@pytest.mark.parametrize(
    ("ours", "lost", "holds"),
    [(0.83, 0.0, [True] * 4), (0.81, 0.02, [False, False, False, False])],
)
def test_the_claims_of_the_release(ours: float, lost: float, holds: list[bool]) -> None:
    tuned = {
        "accuracy": 0.8,
        "best candidate": 0.8 + lost,
        "candidates": 6,
        "setting": "clip 0.2, travel 100",
    }
    row = dict.fromkeys((release.TUNED, release.DESCENT, release.DPSGD), tuned)
    rows = {"1.0": {release.RELEASE: {"accuracy": ours}, **row}}
    results = {"panels": {"imdb": {"rows": rows}}, "titles": {"imdb": "IMDB"}}
    assert [claim.holds for claim in release.claims(results)] == holds


def test_the_tables_of_the_documentation_follow_from_the_results() -> None:
    """`make tables` writes them."""
    pages = "".join(path.read_text("utf-8") for path in sorted(DOCS.glob("*.md")))
    assert updated(pages, DOCS / "results") == pages
    used = set(re.findall("<!-- table: (.*) -->", pages))
    assert used == {path.stem for path in (DOCS / "results").glob("*.json")}
    assert used <= set(TABLES)


def test_a_table_is_generated_anew(tmp_path: Path) -> None:
    panel = {"planned": cells(0.8, 0.7), "reached": cells(0.8, None)}
    results = {"panels": {"imdb": panel}, "titles": {"imdb": "IMDB"}}
    (tmp_path / "best-way.json").write_text(json.dumps({"results": results}))
    page = "before\n<!-- table: best-way -->\nold\n<!-- end -->\nafter\n"
    found = updated(page, tmp_path)
    assert "old" not in found
    assert "| answers from a head | .800 |" in found
    assert "| DP-SGD | - |" in found
    assert "| *the planner's choice* | head .800 |" in found
    assert updated(found, tmp_path) == found


def test_the_other_tables(tmp_path: Path) -> None:
    figure = inference_budget
    curves = {
        name: [{"mean": 0.8}, {"mean": 0.7}]
        for name in (
            *(figure.OURS, figure.OURS_25, figure.SMOOTH, figure.GLOBAL),
            *(figure.SMOOTH_25, figure.ARGMAX, figure.HEAD),
        )
    }
    always = (figure.RELEASED, figure.RULE, figure.TUNED, figure.PUBLISHED)
    panel = {
        "curves": curves,
        "any number of queries": {name: {"mean": 0.75} for name in always},
        "public labels alone": 0.6,
    }
    titles = {"imdb": "IMDB"}
    budget = {"queries": [1, 10], "titles": titles, "panels": {"imdb": {"1.0": panel}}}
    table = inference_budget_table(budget)
    assert "| ours, head, public numbers alone | .800 | .700 | - | - | - |" in table
    assert "| any Q, public numbers alone: released head / DP-SGD | .750 / .750 |" in table
    rows = [{"accuracy": {linear_heads.CHOSEN: 0.8, linear_heads.DEFAULT: 0.81}}]
    heads = {"titles": titles, "panels": {"imdb": {"1.0": {"queries": [1], "rows": rows}}}}
    assert "| IMDB, (1, 1e-5), head, chosen with public labels | .800 |" in linear_heads_table(
        heads
    )


@pytest.mark.parametrize(("accuracy", "holds"), [(0.79, True), (0.77, False)])
def test_patients_are_judged_beside_scans(accuracy: float, holds: bool) -> None:
    release = {"accuracy": 0.75, "with a public threshold": 0.76}
    panel = {
        unit: {"answers": [{"accuracy": found}], "release": release}
        for unit, found in ((patients.PATIENT, accuracy), (patients.SCAN, 0.8))
    }
    results = {
        "panels": {"1.0": panel},
        "queries": [1],
        "public labels alone": 0.7,
        "patients": 12,
        "scans": 40,
    }
    assert [claim.holds for claim in patients.claims(results)] == [holds]
    table = patients_table(results)
    assert (
        f"| (1, 1e-5), per patient | {accuracy:.3f} | .750 | .760 |".replace(" 0.", " .") in table
    )
    assert "| public labels alone, any Q | .700 |  |  |" in table
