"""Settings are chosen on public records; no private record and no query affects the choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

import holdfast as hf
from holdfast.examples.demo import blobs
from holdfast_paper.bench import Bench, blobs_bench, imdb_bench, octmnist_bench, train_members
from holdfast_paper.cells import FOLDS, STUDENT_POINTS, Store, choose, choose_dpsgd, rehearsal

BUDGET = hf.Budget(3.0, 1e-5)


def _bench(task: object) -> Bench:
    bench = blobs_bench(task)
    worse = [
        replace(bench.ours[0], reach=40, recipe=replace(bench.ours[0].recipe, clip=clip))
        for clip in (500.0, 0.05)
    ]
    return replace(bench, ours=worse, dpsgd_tuned=bench.dpsgd_tuned[:2])


def test_the_choice_does_not_depend_on_private_records_or_queries(tmp_path: Path) -> None:
    task = blobs("close", 1500)
    other = replace(
        task, x=-task.x[:50], y=task.y[:50], query_x=-task.query_x, query_y=1 - task.query_y
    )
    mechanism = hf.StableResponse(0.2)
    chosen = []
    for number, given in enumerate((task, other)):
        store, bench = Store(tmp_path / str(number), Console(quiet=True)), _bench(given)
        chosen.append((choose(store, bench, mechanism), choose_dpsgd(store, bench, BUDGET)))
    assert chosen[0] == chosen[1]
    assert chosen[0][0].recipe.clip == 0.05  # a clip of 500 certifies nothing here


def test_a_rehearsal_is_public_and_leaves_the_students_points_alone() -> None:
    task = blobs("close", 1500)
    folds = [rehearsal(task, fold) for fold in range(FOLDS)]
    tested = [row.tobytes() for stage in folds for row in stage.query_x.numpy()]
    assert len(tested) == len(set(tested)) == len(task.tune_y) - STUDENT_POINTS
    stage = folds[1]
    public = {row.tobytes() for row in task.tune_x.numpy()}
    points = {row.tobytes() for row in task.tune_x[:STUDENT_POINTS].numpy()}
    used = {row.tobytes() for part in (stage.x, stage.query_x) for row in part.numpy()}
    assert used <= public - points
    assert not {row.tobytes() for row in stage.x.numpy()} & {
        row.tobytes() for row in stage.query_x.numpy()
    }
    assert float(stage.y.double().mean()) == 0.5
    answers = {
        row.tobytes(): int(label)
        for row, label in zip(task.tune_x.numpy(), task.tune_y, strict=True)
    }
    assert all(
        answers[row.tobytes()] == int(label)
        for row, label in zip(stage.x.numpy(), stage.y, strict=True)
    )


def test_under_add_remove_the_normaliser_is_a_public_number() -> None:
    bench = _bench(blobs("close", 1500))
    fewer = replace(bench.task, x=bench.task.x[1:], y=bench.task.y[1:])
    sizes = [
        train_members(task, bench.ours[0], 3, 0).recipe.batch_size for task in (bench.task, fewer)
    ]
    assert sizes == [round(5000 / 3)] * 2
    left_open = replace(bench.ours[0], recipe=replace(bench.ours[0].recipe, batch_size=None))
    with pytest.raises(hf.errors.InvalidInput, match="batch_size=None"):
        train_members(bench.task, left_open, 1, 0)


def test_both_sides_search_equally_and_nothing_unknown_is_guessed() -> None:
    task = blobs("close", 500)
    for bench in (blobs_bench(task), octmnist_bench(task, torch.nn.Linear(6, 1)), imdb_bench(task)):
        assert len(bench.ours) == len(bench.dpsgd_tuned)
    with pytest.raises(hf.errors.InvalidInput, match="start='random'"):
        train_members(task, replace(_bench(task).ours[0], start="random"), 1, 0)


def test_dp_sgd_rehearses_at_the_noise_of_the_real_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.planning import DpSgdSettings, ways

    seen = []
    monkeypatch.setattr(ways, "_train", lambda *given: seen.append(given) or (given[0], None))
    model = torch.nn.Linear(2, 1)
    settings = DpSgdSettings(epochs=2, batch=100, learning_rate=1.0, clip=1.0)
    ways.rehearse_dpsgd(
        model,
        torch.zeros(50, 2),
        torch.zeros(50, dtype=torch.int64),
        settings,
        BUDGET,
        0,
        records=1000,
    )
    (_, _, _, _, batch, noise, _) = seen[0]
    assert batch == 5
    # The noise on a batch mean, noise * clip / batch, equals that of the run on all 1000 records.
    assert noise / batch == pytest.approx(ways._noise(BUDGET, 0.1, 20) / 100)
