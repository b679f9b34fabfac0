"""Sums over parts of the records, merged, are the sums over all of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.engines import LocalEngine, Task, local_engine
from holdfast.kernels import LOWEST, UNITS, gradients
from holdfast.networks import loop
from holdfast.networks.loop import run
from holdfast.networks.training import prepare_jobs
from tests.kernels import plain

from .parts import make_records, network

pytestmark = pytest.mark.usefixtures("no_shape_checks")


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    records=st.integers(1, 60),
    keep=st.integers(1, 9),
    floor=st.sampled_from([LOWEST, 0]),
)
def test_merged_selections_hold_the_largest_entries(
    data: st.DataObject, records: int, keep: int, floor: int
) -> None:
    """For any split of the records, and as many ties as there are."""
    cuts = sorted(data.draw(st.lists(st.integers(0, records), max_size=4)))
    size = data.draw(st.sampled_from([2, 60, 2 * UNITS]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    out = torch.randint(-size, size + 1, (records, 3), generator=generator).float()
    entry = torch.randint(-2, 3, (records, 10), generator=generator).float()
    totals = {kind: torch.zeros(2, 3, 10, dtype=torch.float64) for kind in (gradients, plain)}
    selected = {}
    for kind in (gradients, plain):
        whole = kind.LargestEntries.start(3, 10, keep, floor)
        for first, last in pairwise([0, *cuts, records]):
            part = kind.LargestEntries.start(3, 10, keep, floor)
            rows = (out[first:last], out[first:last], entry[first:last], None)
            kind.add_gradients(*rows, totals[kind], part)
            whole.merge(part)
        selected[kind] = [whole.sums(wanted) for wanted in range(min(keep, records) + 1)]
    products = (out[:, :, None] * entry[:, None, :]).clamp(-UNITS, UNITS).double()
    ends = torch.stack([products, -products], 1)
    assert torch.equal(totals[gradients], ends.sum(0))
    assert torch.equal(totals[gradients], totals[plain])
    ordered = ends.clamp(min=floor).sort(0, descending=True).values
    for wanted in range(min(keep, records) + 1):
        expected = ordered[:wanted].sum(0)
        assert torch.equal(selected[gradients][wanted], expected)
        assert torch.equal(selected[plain][wanted].double(), expected)


@pytest.mark.parametrize("relation", ["add_remove", "replace", "remove"])
@pytest.mark.parametrize("public", [False, True])
def test_the_cut_into_tasks_changes_nothing(
    relation: str, public: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one task per box to many per row, one of which has a record that overflows."""
    x, y = make_records(700)
    x[5] = 3e38
    recipe = hf.Recipe(epochs=2, batch_size=700, clip=0.1)
    model = network()
    with torch.no_grad():
        model[0].weight.fill_(2.0)  # so that record 5 overflows
    (job,) = prepare_jobs(
        [model], hf.Dataset(x, y), recipe, neighbours=relation, max_distance=5,
        public=make_records(30, 4) if public else None,
    )  # fmt: skip
    found = []
    for products, rows in ((2**60, 1024), (2**12, 64), (2**14, 1), (1, 3)):
        monkeypatch.setattr(loop, "_TASK_PRODUCTS", products)
        monkeypatch.setattr(loop, "_SPAN_ROWS", rows)
        seen: list[int] = []
        states = list(run(job, job.start(), seen.append))
        assert sum(seen) == 2 * 6 * (700 + (30 if public else 0))
        assert states[-1].overflowed == 1
        found.append(states[-1].boxes)
    for boxes in found[1:]:
        for one, other in zip(found[0], boxes, strict=True):
            for name, interval in one.bounds.box.items():
                assert torch.equal(interval.lower, other.bounds.box[name].lower)
                assert torch.equal(interval.upper, other.bounds.box[name].upper)


@settings(max_examples=200, deadline=None)
@given(
    boxes=st.integers(1, 200),
    rows=st.integers(0, 10**7),
    parallel=st.integers(1, 600),
)
def test_tasks_cover_every_box_and_row_once(boxes: int, rows: int, parallel: int) -> None:
    x, y = make_records(4)
    (job,) = prepare_jobs([network()], hf.Dataset(x, y), hf.Recipe(batch_size=4), max_distance=1)
    chunks, spans = loop._task_ranges(job, boxes, rows, parallel)
    assert [box for chunk in chunks for box in range(boxes)[chunk]] == list(range(boxes))
    assert spans[0][0] == 0
    assert spans[-1][1] == rows
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert all(first < last for first, last in spans) or rows == 0


def _slow_square(number: int, on_progress: object) -> int:
    if number == 3:
        torch.ones(1000, 1000).exp()
    return number * number


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_results_come_in_the_order_of_the_tasks(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with local_engine() as engine:
            assert isinstance(engine, LocalEngine)
            assert engine.parallel == threads
            tasks = (Task((number,), 1) for number in range(50))
            assert list(engine.run(_slow_square, tasks, None)) == [n * n for n in range(50)]
            assert list(engine.run_here(pow, range(9), [2] * 9)) == [n * n for n in range(9)]
    finally:
        torch.set_num_threads(before)


def test_other_engines_are_refused_before_any_work() -> None:
    x, y = make_records(4)
    for engine in ("dask", "", None, 3):
        with pytest.raises(hf.errors.InvalidInput, match="expected 'local' or 'ray'"):
            hf.train(network(), x, y, hf.Recipe(batch_size=4), engine=engine, progress=False)
        with pytest.raises(hf.errors.InvalidInput, match="expected 'local' or 'ray'"):
            hf.train_linear(x, y, hf.LinearRecipe(batch_size=4), classes=2, engine=engine)
