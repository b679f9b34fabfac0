"""The parts that figures share: cached cells and choices on public records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

import holdfast as hf
import holdfast_paper.depth
import holdfast_paper.heat_map  # noqa: F401
from holdfast.examples.demo import blobs
from holdfast_paper.bench import blobs_bench, train_members
from holdfast_paper.cells import (
    STUDENT_POINTS,
    Store,
    certificates,
    code_digest,
    code_text,
    summary,
)
from holdfast_paper.tightness import distance_grid

QUIET = Console(quiet=True)


def test_a_cell_is_computed_once_for_its_full_configuration(tmp_path: Path) -> None:
    calls = []

    def compute(tag: str) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
        calls.append(tag)
        return {"tag": tag}, {"t": torch.arange(3)}

    for config in ({"a": 1}, {"a": 2}, {"a": 1}, {"a": 1, "b": [1, 2]}):
        cell = Store(tmp_path, QUIET).cell(
            "title", config, lambda config=config: compute(str(config))
        )
        assert cell.figures["tag"] == str(config)
        assert cell.tensors["t"].tolist() == [0, 1, 2]
    assert calls == ["{'a': 1}", "{'a': 2}", "{'a': 1, 'b': [1, 2]}"]


def test_the_key_of_a_cell_has_the_code_that_decides_it() -> None:
    """Code counts; docstrings, comments and layout do not."""
    code = "def f(x):\n    return x + 1\n"
    reworded = 'def f(x):\n    """Add one."""\n    # a comment\n    return (x + 1)\n'
    assert code_text(code) == code_text(reworded)
    assert code_text(code) != code_text(code.replace("1", "2"))
    assert code_digest("holdfast_paper.depth") != code_digest("holdfast_paper.heat_map")


def test_an_interrupted_cell_leaves_nothing_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path, QUIET)

    def interrupted() -> tuple[dict[str, str], dict[str, torch.Tensor]]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.cell("title", {}, interrupted)
    assert not list(tmp_path.iterdir())
    store.cell("title", {}, lambda: ({"x": 1}, {"t": torch.zeros(100)}))
    (path,) = tmp_path.glob("*.cell")
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(hf.errors.DamagedFile, match="digest"):
        store.cell("title", {}, interrupted)


def test_cells_hold_what_training_gives(tmp_path: Path) -> None:
    bench = blobs_bench(blobs("close", 500))
    bench = replace(
        bench,
        paper=replace(bench.paper, reach=12),
        ours=[replace(setting, reach=12) for setting in bench.ours],
    )
    store = Store(tmp_path, QUIET)
    found = certificates(store, bench, bench.paper, members=3, seed=1)
    trained = train_members(bench.task, bench.paper, 3, 1)
    direct = trained.certify(bench.task.query_x)
    assert torch.equal(found.certificate.distances, direct.distances)
    assert torch.equal(found.certificate.votes, direct.votes)
    assert found.accuracy == float((direct.labels == bench.task.query_y).double().mean())
    assert not found.paper.nested  # mechanisms refuse to release from the paper's distance
    with pytest.raises(hf.errors.InvalidInput, match="nested"):
        hf.mechanisms.CauchyResponse(1.0).release(found.paper)
    tuned = certificates(store, bench, bench.paper, members=3, seed=1, part="points")
    assert torch.equal(
        tuned.certificate.distances, trained.certify(bench.task.tune_x[:STUDENT_POINTS]).distances
    )
    assert torch.equal(tuned.right, bench.task.tune_y[:STUDENT_POINTS])


def test_spread_and_grids() -> None:
    assert summary([1.0, 3.0]) == {"mean": 2.0, "std": pytest.approx(2**0.5), "n": 2}
    assert summary([0.5])["std"] == 0.0
    for reach in (1, 7, 100):
        for count in (1, 2, 5, 100):
            values = distance_grid(count, reach)
            assert values == sorted(set(values))
            assert values[0] >= 1
            assert len(values) == min(count, reach)
