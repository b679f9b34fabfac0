"""The data sets of the experiments: fixed, disjoint splits and clear errors for bad data."""

from __future__ import annotations

import hashlib
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import holdfast as hf
from holdfast.examples.demo import Task, blobs
from holdfast.examples.tables import MissingData, download, read_archive
from holdfast.examples.tables import data_folder as folder_of
from holdfast_paper.scans_and_reviews import DRUSEN, MD5, imdb, octmnist, octmnist_by_patient
from holdfast_paper.table_data import amex, large_table


def _rows(x: torch.Tensor) -> set[bytes]:
    return {row.tobytes() for row in x.flatten(1).numpy()}


def _write_scans(path: Path, each: int = 6, patients: bool = False) -> None:
    lot = np.random.default_rng(0)
    arrays = {}
    if patients:
        arrays["train_patient"] = lot.integers(0, each, 4 * each + 2)
    for part in ("train", "val", "test"):
        arrays[f"{part}_images"] = lot.integers(0, 256, (4 * each + 2, 28, 28), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.array([*range(4)] * each + [3, 3], dtype=np.uint8)[:, None]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def _assert_disjoint(task: Task, twice: float = 0.0) -> None:
    """Assert that no row is in two parts, except for a share `twice` of known duplicates."""
    parts = [_rows(part) for part in (task.x, task.query_x, task.public_x, task.tune_x)]
    for i, one in enumerate(parts):
        for other in parts[i + 1 :]:
            assert len(one & other) <= twice * len(one)


def test_blobs() -> None:
    task = blobs("far", 500)
    assert (len(task.y), len(task.query_y)) == (400, 100)
    _assert_disjoint(task)
    assert task.digest == blobs("far", 500).digest
    assert task.digest != blobs("close", 500).digest
    torch.testing.assert_close(task.x[:, 2:4], task.x[:, :2] ** 2)


def test_no_patient_is_both_private_and_public(tmp_path: Path) -> None:
    path = tmp_path / "octmnist" / "octmnist.npz"
    _write_scans(path, 60, patients=True)
    task = octmnist_by_patient(tmp_path)
    archive = np.load(path)
    scaled = (archive["train_images"] / np.float32(255)).astype(np.float32)
    patients = {
        image.tobytes(): int(patient)
        for image, patient in zip(scaled, archive["train_patient"], strict=True)
    }
    assert task.persons is not None
    assert [patients[row.numpy().tobytes()] for row in task.x] == task.persons.tolist()
    public = {patients[row] for row in _rows(task.public_x)}
    assert public
    assert public.isdisjoint(task.persons.tolist())
    _assert_disjoint(task)
    assert task.subsample(10, 5).persons.shape == (10,)
    _write_scans(path)
    with pytest.raises(MissingData, match="has no train_patient"):
        octmnist_by_patient(tmp_path)


def test_scans_are_split_so_that_drusen_is_private(tmp_path: Path) -> None:
    _write_scans(tmp_path / "octmnist" / "octmnist.npz")
    task = octmnist(tmp_path)
    kinds = np.load(tmp_path / "octmnist" / "octmnist.npz")["train_labels"].ravel()
    images = np.load(tmp_path / "octmnist" / "octmnist.npz")["train_images"]
    drusen = {
        (image / np.float32(255)).astype(np.float32).tobytes() for image in images[kinds == DRUSEN]
    }
    assert drusen < _rows(task.x)
    assert not drusen & _rows(task.public_x)
    assert task.y.double().mean() == 0.5
    assert len(task.x) + len(task.public_x) == len(kinds)
    assert set(task.query_groups.tolist()) == {0, 1, 2, 3}
    assert torch.equal(task.query_y, (task.query_groups != 3).long())
    _assert_disjoint(task)


def test_what_is_missing_is_said_with_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    for load, words in (
        (lambda: octmnist(None), ["--data", "zenodo.org", MD5]),
        (lambda: octmnist(tmp_path), [str(tmp_path), "--download"]),
        (lambda: imdb(tmp_path), ["imdb/train.parquet", "stanfordnlp/imdb"]),
        (lambda: amex(tmp_path), ["train_data.csv", "kaggle.com"]),
        (lambda: large_table(tmp_path), ["tables/brfss_diabetes.npz", "X", "y"]),
    ):
        with pytest.raises(hf.errors.InvalidInput) as error:
            load()
        for word in words:
            assert word in str(error.value)
    with pytest.raises(hf.errors.InvalidInput, match="no such folder"):
        folder_of(tmp_path / "nowhere")
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    assert folder_of(None) == tmp_path
    assert folder_of(tmp_path / ".." / tmp_path.name) is not None


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, X=np.zeros(3))
    assert read_archive(path, ["X"])["X"].tolist() == [0, 0, 0]
    with pytest.raises(hf.errors.DamagedFile, match="has no 'y'"):
        read_archive(path, ["X", "y"])
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(hf.errors.DamagedFile, match="not a readable archive"):
        read_archive(path, ["X"])
    np.savez(path, X=np.array([{"a": 1}], dtype=object))
    with pytest.raises(hf.errors.DamagedFile, match="not a readable archive"):
        read_archive(path, ["X"])  # a pickle, which is never loaded


def test_a_download_takes_its_place_only_if_it_is_the_right_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "served.npz"
    _write_scans(source)
    url, md5 = source.as_uri(), hashlib.md5(source.read_bytes()).hexdigest()
    with pytest.raises(hf.errors.DamagedFile, match="MD5"):
        download(url, tmp_path / "x" / "a.npz", "0" * 32)
    assert not list((tmp_path / "x").iterdir())
    with pytest.raises(hf.errors.InvalidInput, match="by hand"):
        download((tmp_path / "absent").as_uri(), tmp_path / "x" / "a.npz", md5)
    assert download(url, tmp_path / "x" / "a.npz", md5).read_bytes() == source.read_bytes()
    room = import_module("holdfast_paper.scans_and_reviews")
    monkeypatch.setattr(room, "URL", url)
    monkeypatch.setattr(room, "MD5", md5)
    assert len(octmnist(tmp_path, fetch=True).query_y) == 26
    assert (tmp_path / "octmnist" / "octmnist.npz").is_file()


@pytest.mark.parametrize(
    "content", [b"", b"PK junk", np.zeros(3).tobytes()], ids=["empty", "cut", "noise"]
)
def test_unreadable_data_ends_in_our_errors(tmp_path: Path, content: bytes) -> None:
    for name in (
        "octmnist/octmnist.npz",
        "tables/t.npz",
        "imdb/imdb_minilm.npz",
        "imdb/train.parquet",
        "amex/train_data.csv",
        "amex/train_labels.csv",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    np.save(tmp_path / "plain.npy", np.zeros(3))
    for load in (
        lambda: octmnist(tmp_path),
        lambda: large_table(tmp_path, "t"),
        lambda: imdb(tmp_path),
        lambda: imdb(tmp_path, "any"),
        lambda: amex(tmp_path),
    ):
        with pytest.raises(hf.HoldfastError):
            load()
    (tmp_path / "tables" / "t.npz").write_bytes((tmp_path / "plain.npy").read_bytes())
    with pytest.raises(hf.errors.DamagedFile, match="not a readable archive"):
        large_table(tmp_path, "t")


def test_data_of_another_shape_is_refused(tmp_path: Path) -> None:
    for folder in ("octmnist", "tables", "imdb"):
        (tmp_path / folder).mkdir()
    np.savez(tmp_path / "tables" / "t.npz", X=np.zeros((5, 2)), y=np.zeros(4))
    with pytest.raises(hf.errors.DamagedFile, match="5 rows, 4 labels"):
        large_table(tmp_path, "t")
    np.savez(
        tmp_path / "imdb" / "imdb_minilm.npz",
        X_train=np.zeros((3, 2)),
        y_train=np.zeros(3),
        X_test=np.zeros((3, 2)),
        y_test=np.zeros(3),
    )
    with pytest.raises(hf.errors.DamagedFile, match="more than 20,000 test reviews"):
        imdb(tmp_path)
    arrays = {
        f"{part}_{kind}": np.zeros((4, 64, 64) if kind == "images" else 4)
        for part in ("train", "val", "test")
        for kind in ("images", "labels")
    }
    np.savez(tmp_path / "octmnist" / "octmnist.npz", **arrays)
    with pytest.raises(hf.errors.DamagedFile, match="28x28"):
        octmnist(tmp_path)
    for part in ("train", "val", "test"):
        arrays[f"{part}_images"] = np.zeros((4, 28, 28))
    np.savez(tmp_path / "octmnist" / "octmnist.npz", **arrays)
    with pytest.raises(hf.errors.DamagedFile, match="0 scans with Drusen"):
        octmnist(tmp_path)


def _write_statements(folder: Path, rows: list[str], customers: str = "a,1\nb,0\n") -> Path:
    (folder / "amex").mkdir(exist_ok=True)
    (folder / "amex" / "train_data.csv").write_text(
        "customer_ID,S_2,P_2,D_63,D_64\n" + "\n".join(rows) + "\n"
    )
    (folder / "amex" / "train_labels.csv").write_text("customer_ID,target\n" + customers)
    return folder


def test_card_statements(tmp_path: Path) -> None:
    rows = [
        f"{'ab'[i % 2]},2017-03-09,{i / 40 if i % 7 else ''},"
        f"{('CO', 'CR', 'XZ')[i % 3]},{('O', '', '-1')[i % 3]}"
        for i in range(40)
    ]
    task = amex(_write_statements(tmp_path, rows))
    assert task.x.shape[1] == 1 + 6 + 4
    assert bool(torch.isfinite(task.x).all())
    assert abs(float(task.y.double().mean()) - 0.5) < 0.2
    assert len(task.y) + len(task.query_y) + len(task.tune_y) + len(task.public_x) == 40
    with pytest.raises(hf.errors.InvalidInput, match="statement 2 is of a customer"):
        amex(_write_statements(tmp_path, ["a,d,1,CO,O", "c,d,1,CO,O"]))
    (tmp_path / "amex" / "train_data.csv").write_text("customer_ID,S_2,P_2,D_64\na,d,1,O\n")
    with pytest.raises(hf.errors.InvalidInput, match="no column 'D_63'"):
        amex(tmp_path)
    (tmp_path / "amex" / "train_labels.csv").write_text("customer,target\na,1\n")
    with pytest.raises(hf.errors.InvalidInput, match="customer_ID and target"):
        amex(tmp_path)


def test_kaggles_columns(data_folder: Path, tmp_path: Path) -> None:
    """The real file's columns are accepted (a sample of it, with made-up labels)."""
    (tmp_path / "amex").mkdir()
    sample = (data_folder / "amex" / "sample_20rows_schema.csv").read_text()
    (tmp_path / "amex" / "train_data.csv").write_text(sample)
    customers = sorted({line.split(",")[0] for line in sample.splitlines()[1:]})
    (tmp_path / "amex" / "train_labels.csv").write_text(
        "customer_ID,target\n" + "".join(f"{c},{i % 2}\n" for i, c in enumerate(customers))
    )
    assert len(customers) > 1
    task = amex(tmp_path)
    assert task.x.shape[1] == len(sample.splitlines()[0].split(",")) - 4 + 10
    assert bool(torch.isfinite(task.x).all())


def test_a_large_table_has_both_classes_alike(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    lot = np.random.default_rng(0)
    np.savez(
        tmp_path / "tables" / "t.npz",
        X=lot.normal(size=(1000, 3)).astype(np.float32),
        y=(lot.random(1000) < 0.1).astype(np.int64),
    )
    task = large_table(tmp_path, "t")
    together = torch.cat([task.y, task.query_y, task.tune_y])
    assert abs(float(together.double().mean()) - 0.5) < 0.1
    _assert_disjoint(task)
    np.savez(tmp_path / "tables" / "t.npz", X=np.zeros((4, 2)), y=np.arange(4))
    with pytest.raises(hf.errors.InvalidInput, match="expected 0 and 1"):
        large_table(tmp_path, "t")


def test_a_small_task_keeps_rows_and_answers_together() -> None:
    task = blobs("far", 500)
    small = task.subsample(50, 20)
    assert (len(small.x), len(small.y), len(small.query_x), len(small.tune_y)) == (50, 50, 20, 50)
    answers = {
        row.tobytes(): label for row, label in zip(task.x.numpy(), task.y.tolist(), strict=True)
    }
    assert all(
        answers[row.tobytes()] == label
        for row, label in zip(small.x.numpy(), small.y.tolist(), strict=True)
    )
    assert small.digest != task.digest


def test_the_real_reviews(data_folder: Path) -> None:
    task = imdb(data_folder)
    assert (len(task.y), len(task.query_y), len(task.public_x), len(task.tune_y)) == (
        25_000,
        10_000,
        10_000,
        5_000,
    )
    assert task.public_y is None
    _assert_disjoint(task, twice=0.01)  # some reviews occur twice
    for labels in (task.y, task.query_y, task.tune_y):
        assert abs(float(labels.double().mean()) - 0.5) < 0.03


def test_the_real_scans(data_folder: Path) -> None:
    task = octmnist(data_folder)
    assert len(task.query_y) == 1000
    assert task.y.double().mean() == 0.5
    assert 0.0 <= float(task.x.min()) < float(task.x.max()) <= 1.0
