"""Rows on disk come back as they were written, in any order that is asked for."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.records import Rows, store
from holdfast.records.store import Partitions, Spool


@settings(max_examples=100, deadline=None)
@given(data=st.data(), rows=st.integers(0, 60), width=st.integers(1, 4), part=st.integers(1, 20))
def test_rows_are_gathered_in_the_order_that_is_asked_for(
    data: st.DataObject, rows: int, width: int, part: int
) -> None:
    values = np.arange(rows * width, dtype=np.float64).reshape(rows, width)
    order = np.array(data.draw(st.permutations(range(rows))), dtype=np.int64)
    order = order[: data.draw(st.integers(0, rows))]
    with patch.object(store, "SPOOL_ROWS", part):
        written = Spool(width, np.float64)
        cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=3)))
        for first, last in pairwise([0, *cuts, rows]):
            written.append(values[first:last])
        assert np.array_equal(written.read(0, rows), values)
        found = written.gathered(order)
        assert np.array_equal(found.read(0, found.rows), values[order])
        written.close()
        found.close()


def test_nothing_has_a_name_and_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.tempfile, "tempdir", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    written = Spool(3, np.float32)
    written.append(np.ones((5, 3)))
    partitions = Partitions(10**6, 3, np.float32)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) > before
    del written, partitions
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_became_shorter_is_an_error() -> None:
    written = Spool(1, np.float64)
    written.append(np.ones((10, 1)))
    written._file.truncate(24)
    with pytest.raises(hf.HoldfastError, match="became shorter"):
        written.read(0, 10)


@given(
    start=st.integers(0, 20),
    length=st.integers(0, 50),
    rows=st.integers(1, 9),
    first=st.integers(0, 50),
    last=st.none() | st.integers(0, 60),
)
def test_ranges_make_up_the_rows(
    start: int, length: int, rows: int, first: int, last: int | None
) -> None:
    numbers = torch.arange(start + length)
    records = replace(Rows.of(numbers[:, None], numbers), starts=(0, start, start + length))
    blocks = list(records.blocks(1, rows, first, last))
    listed = [row - start for block in blocks for row in block.labels.tolist()]
    assert listed == list(range(length))[first:last]
    assert all(len(block.labels) <= rows for block in blocks)
