"""Odd Parquet files, folders and limits: read as in memory, or refused with an error of ours."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import holdfast as hf
from holdfast.heads import descent
from holdfast.records import store

from .parts import make_records, network, require_same_bits, write_files

pytestmark = [
    pytest.mark.usefixtures("no_shape_checks"),
    pytest.mark.filterwarnings("ignore:NOT private:holdfast.errors.HoldfastWarning"),
]
QUIET: dict[str, Any] = {"progress": False}


def _train(x: Any, y: Any = None, **settings: Any) -> hf.Certified:
    recipe = hf.Recipe(batch_size=8, clip=1e-3, batches=2)
    model = torch.nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    given = (x, recipe) if y is None else (x, y, recipe)
    return hf.train(model, *given, max_distance=2, **settings, **QUIET)


def test_the_largest_whole_numbers_are_rounded_once(tmp_path: Path) -> None:
    """Rounded twice, a record could even move to another batch."""
    values = np.array([2**60 + 2**36 + 1 + number for number in range(8)], np.uint64)
    y = np.arange(8) % 2
    parquet.write_table(pa.table({"a": values, "y": y}), tmp_path / "t.parquet")
    streamed = _train(hf.Dataset.parquet(tmp_path / "t.parquet", label="y"))
    require_same_bits(_train(values[:, None], y), streamed)


def test_the_index_of_a_data_frame_is_no_feature(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [0.1, 0.2, 0.3, 0.4], "y": [0, 1, 0, 1]}).drop(index=2)
    frame.to_parquet(tmp_path / "t.parquet")
    assert "__index_level_0__" in parquet.read_schema(tmp_path / "t.parquet").names
    assert hf.Dataset.parquet(tmp_path / "t.parquet", label="y").source.columns == ("a",)


def test_files_may_order_their_columns_differently(tmp_path: Path) -> None:
    x, y = make_records(40)
    write_files(tmp_path / "table", x, y, files=2)
    first, *_ = sorted((tmp_path / "table").iterdir())
    turned = parquet.read_table(first)
    parquet.write_table(turned.select(turned.column_names[::-1]), first)
    names = tuple(f"f{number}" for number in range(x.shape[1]))
    records = hf.Dataset.parquet(tmp_path / "table", label="y", columns=(n for n in names))
    recipe = hf.Recipe(batch_size=40)
    there = hf.train(network(), records, recipe, max_distance=2, **QUIET)
    require_same_bits(hf.train(network(), x, y, recipe, max_distance=2, **QUIET), there)


def test_one_file_under_two_names_is_refused(tmp_path: Path) -> None:
    """Each of its records would count twice, and be protected half."""
    parquet.write_table(pa.table({"a": [0.1], "y": [0]}), tmp_path / "a.parquet")
    os.link(tmp_path / "a.parquet", tmp_path / "b.parquet")
    with pytest.raises(hf.errors.InvalidInput, match="two of its files are the same one"):
        hf.Dataset.parquet(tmp_path, label="y")
    (tmp_path / "b.parquet").unlink()
    (tmp_path / "b.parquet").symlink_to(tmp_path / "gone.parquet")
    with pytest.raises(hf.errors.InvalidInput, match="b.parquet: "):
        hf.Dataset.parquet(tmp_path, label="y")


def test_values_that_change_after_the_files_were_opened_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"a": [0.1] * 8, "y": [0, 1] * 4}), path)
    records = hf.Dataset.parquet(path, label="y")
    parquet.write_table(pa.table({"a": [0.2] * 8, "y": [0, 1] * 4}), path)
    with pytest.raises(hf.errors.InvalidInput, match="was changed after it was opened"):
        _train(records)


def test_flipped_bytes_are_found_if_the_file_has_checksums(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"a": np.linspace(0, 1, 1000), "y": [0, 1] * 500})
    parquet.write_table(
        table, path, compression="none", use_dictionary=False, write_page_checksum=True
    )
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(hf.errors.InvalidInput, match="not a readable table"):
        _train(hf.Dataset.parquet(path, label="y"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": None}, "path=None: expected a name"),
        ({"path": ["a", "b"]}, "path=.*: expected a name"),
        ({"path": "a" * 5000}, "cannot be read"),
        ({"label": None}, "label=None: expected the name"),
    ],
)
def test_odd_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(hf.errors.InvalidInput, match=message):
        hf.Dataset.parquet(**{"path": "t.parquet", "label": "y", **arguments})


def test_texts_that_are_none_and_missing_values_are_refused(tmp_path: Path) -> None:
    broken = pa.array([b"\xff\xfe"] * 4, pa.binary()).cast(pa.string(), safe=False)
    table = pa.table({"a": [0.1] * 4, "y": [0, 1] * 2, "key": broken})
    parquet.write_table(table, tmp_path / "text.parquet")
    records = hf.Dataset.parquet(tmp_path / "text.parquet", label="y", columns=["a"], id="key")
    with pytest.raises(hf.errors.InvalidInput, match="not a readable table"):
        _train(records)
    flags = pa.table({"a": [True, None, False, True], "y": [0, 1] * 2})
    parquet.write_table(flags, tmp_path / "flags.parquet")
    with pytest.raises(hf.errors.InvalidInput, match="column 'a': holds missing values"):
        _train(hf.Dataset.parquet(tmp_path / "flags.parquet", label="y"))


def test_a_temporary_folder_that_cannot_be_used_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another folder, such as one on a disk that is not encrypted, might not be meant."""
    (tmp_path / "file").touch()
    for name in ("mistyped", "file"):
        monkeypatch.setenv("TMPDIR", str(tmp_path / name))
        with pytest.raises(hf.errors.InvalidInput, match=f"{name}: the records cannot be kept"):
            store.Spool(1, np.float32)


def test_too_many_open_files_are_told() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, hard))
    try:
        with pytest.raises(hf.errors.InvalidInput, match="allow more open files"):
            store.Partitions(10**7, 1, np.float32)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_parts_are_bounded_in_bytes() -> None:
    """However wide a table is, what is in memory at a time is not."""
    assert store.part_rows(4 * 188) == 65_536
    assert store.part_rows(8 * 20_000) * 8 * 20_000 <= 2**26
    assert store.part_rows(10**9) == 1
    assert descent.window_blocks(100) == 64
    assert descent.window_blocks(20_000) == 1
    wide = store.Partitions(100_000, 2000, np.float64)
    assert len(wide._features) == 12
