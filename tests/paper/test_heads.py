"""The figures on heads: splits by public rules, and claims that can be false."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from holdfast.examples.tables import MissingData
from holdfast_paper import head_defaults, linear_heads
from holdfast_paper.table_data import TABLE_NAMES, table_task


def test_digits_are_split_by_a_hash_of_the_row() -> None:
    task = table_task(None, "digits")
    assert (len(task.y) + len(task.query_y), task.features, task.classes) == (1797, 64, 10)
    again = table_task(None, "digits")
    assert np.array_equal(task.query_y, again.query_y)
    assert 0.5 < len(task.y) / task.records < 2.0  # the public number is about right


def test_a_table_that_is_missing_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(MissingData):
        table_task(tmp_path, "gmsc")


@pytest.mark.parametrize("name", [name for name in TABLE_NAMES if name != "digits"])
def test_tables(data_folder: Path, name: str) -> None:
    task = table_task(data_folder, name)
    assert 0.5 < len(task.y) / task.records < 2.0
    encoded = task.rules.apply(task.query_x)
    assert encoded.shape == (len(task.query_y), task.features)
    assert encoded.abs().max() <= 1.0
    if name != "uci_credit_default":
        assert 0.4 < task.y.mean() < 0.6


def _row(ours: float, best: float, boxes: float) -> dict:
    accuracy = dict(zip((head_defaults.DEFAULT, head_defaults.BEST, head_defaults.BOXES),
                        (ours, best, boxes), strict=True))  # fmt: skip
    plain = {"accuracy": 0.9, "balanced accuracy": 0.9, "AUC": 0.9}
    return {
        "accuracy": accuracy,
        "balanced accuracy": 0.9,
        "plain head": plain,
        "default": "",
        "best candidate": "",
        "best box": "",
    }


@pytest.mark.parametrize(
    ("figures", "holds"), [((0.8, 0.805, 0.7), [True, True]), ((0.7, 0.8, 0.75), [False, False])]
)
def test_claims_about_defaults(figures: tuple[float, ...], holds: list[bool]) -> None:
    results = {"tables": {"digits": {"1.0": _row(*figures)}}}
    assert [claim.holds for claim in head_defaults.claims(results)] == holds


@pytest.mark.parametrize(
    ("chosen", "default", "holds"), [(0.83, 0.825, [True, True]), (0.80, 0.78, [False, False])]
)
def test_claims_about_heads(chosen: float, default: float, holds: list[bool]) -> None:
    accuracy = {linear_heads.CHOSEN: chosen, linear_heads.DEFAULT: default}
    row = {
        "accuracy": accuracy,
        "settings": dict.fromkeys(accuracy, ""),
        "difference": {"mean": 0.0, "low": 0.0, "high": 0.0},
    }
    panels = {"imdb": {"10.0": {"rows": [row], "queries": [1]}}}
    results = {"panels": panels, "titles": {"imdb": "IMDB"}}
    assert [claim.holds for claim in linear_heads.claims(results)] == holds
