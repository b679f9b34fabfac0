"""The data sets of scans (OctMNIST) and reviews (IMDB).

Of the training images, only the private ones show Drusen, one of the diseases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor

from holdfast.errors import DamagedFile
from holdfast.examples.demo import Task, floats, labels
from holdfast.examples.tables import MissingData, download, find_file, read_archive

DRUSEN, NORMAL = 2, 3
URL = "https://zenodo.org/records/10519652/files/octmnist.npz?download=1"
MD5 = "c68d92d5b585d8d81f7112f81e2d0842"
_NAMES = ("octmnist/octmnist.npz", "octmnist.npz")
_PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class _Scans:
    """All scans of the file, by part."""

    path: Path
    images: dict[str, Tensor]
    kinds: dict[str, Tensor]
    patients: NDArray[np.int64] | None  # of the training scans, if the file has them

    def task(self, name: str, private: NDArray[np.int64], public: NDArray[np.int64]) -> Task:
        """Return the task whose private and public records are these training scans."""
        abnormal = {part: (kind != NORMAL).long() for part, kind in self.kinds.items()}
        drusen = int((self.kinds["train"][private] == DRUSEN).sum())
        return Task(
            name=name,
            source=(
                f"{self.path.name}: {len(private):,} private images "
                f"({drusen:,} with Drusen), {len(public):,} public"
            ),
            x=self.images["train"][private],
            y=abnormal["train"][private],
            query_x=self.images["test"],
            query_y=abnormal["test"],
            query_groups=self.kinds["test"],
            public_x=self.images["train"][public],
            public_y=abnormal["train"][public],
            tune_x=self.images["val"],
            tune_y=abnormal["val"],
        )


def octmnist(folder: Path | None, fetch: bool = False) -> Task:
    """Return the OctMNIST task.

    The private records are the training images with Drusen and as many normal ones; the other
    training images are public. Settings are chosen on the validation images. All test images are
    queries, grouped by their original class. `fetch` downloads MedMNIST's file if it is missing.
    """
    scans = _read(folder, fetch)
    order = np.random.default_rng(0).permutation(len(scans.kinds["train"]))
    shuffled = scans.kinds["train"].numpy()[order]
    drusen, normal = order[shuffled == DRUSEN], order[shuffled == NORMAL]
    private = np.sort(np.concatenate([drusen, normal[: len(drusen)]]))
    return scans.task("octmnist", private, np.setdiff1d(order, private))


def octmnist_by_patient(folder: Path | None, fetch: bool = False) -> Task:
    """Return the same task with whole patients: no patient is both private and public.

    The private patients are those with a scan that shows Drusen, and normal ones until there are as
    many normal scans; their scans of other diseases are left out.
    """
    scans = _read(folder, fetch)
    if scans.patients is None:
        raise MissingData(
            f"{scans.path}: has no train_patient, the patient of each training scan; MedMNIST's "
            "file does not have it either: add it from the names of the original scans"
        )
    kinds, patients = scans.kinds["train"].numpy(), scans.patients
    private = set(patients[kinds == DRUSEN].tolist())
    normal = np.setdiff1d(patients[kinds == NORMAL], list(private))
    wanted = int((kinds == DRUSEN).sum())
    for patient in np.random.default_rng(0).permutation(normal).tolist():
        if int(((kinds == NORMAL) & np.isin(patients, list(private))).sum()) >= wanted:
            break
        private.add(patient)
    own = np.isin(patients, list(private))
    rows = np.flatnonzero(own & np.isin(kinds, (DRUSEN, NORMAL)))
    task = scans.task("octmnist-patients", rows, np.flatnonzero(~own))
    return replace(task, persons=torch.from_numpy(patients[rows]))


def _read(folder: Path | None, fetch: bool) -> _Scans:
    if fetch and folder is not None and not any((folder / name).is_file() for name in _NAMES):
        download(URL, folder / _NAMES[0], MD5)
    how = f"Get it with --download, or download {URL} (MD5 {MD5}) and put it there."
    path = find_file(folder, _NAMES, how)
    arrays = read_archive(
        path,
        [f"{part}_{kind}" for part in _PARTS for kind in ("images", "labels")],
        optional=["train_patient"],
    )
    for part in _PARTS:
        if arrays[f"{part}_images"].shape != (arrays[f"{part}_labels"].size, 28, 28):
            raise DamagedFile(
                f"{path}: {part}_images has shape {arrays[f'{part}_images'].shape}; "
                "expected one scan of 28x28 per label"
            )
    images = {part: floats(arrays[f"{part}_images"])[:, None] / 255.0 for part in _PARTS}
    kinds = {part: labels(arrays[f"{part}_labels"]) for part in _PARTS}
    drusen, normal = (int((kinds["train"] == kind).sum()) for kind in (DRUSEN, NORMAL))
    if not 0 < drusen < normal:
        raise DamagedFile(
            f"{path}: {drusen} scans with Drusen and {normal} normal ones to train on; "
            "expected some with Drusen, and more normal ones"
        )
    patients = arrays.get("train_patient")
    return _Scans(path, images, kinds, None if patients is None else patients.astype(np.int64))


_TEXTS_PER_FILE = 256  # texts per cache file: the most work that an interruption can lose
_TEXTS_PER_CALL = 16  # texts per call of the model
_MAX_TOKENS = 512  # tokens per text, from its beginning


def embed(
    texts: Sequence[str],
    model: str,
    cache: Path,
    fetch: bool = False,
    console: Console | None = None,
) -> NDArray[np.float32]:
    """Return one row of numbers per text.

    `model` is a folder, or a name at Hugging Face, which is downloaded only if `fetch` is true.
    """
    folder = cache / _key(texts, model)
    folder.mkdir(parents=True, exist_ok=True)
    starts = range(0, len(texts), _TEXTS_PER_FILE)
    missing = [start for start in starts if not (folder / f"{start}.npz").is_file()]
    if missing:
        encode = _encoder(model, fetch)
        shown = console or Console(quiet=True)
        for start in track(
            missing,
            f"embedding by {Path(model).name}",
            console=shown,
            disable=not shown.is_terminal,
        ):
            _write(folder / f"{start}.npz", encode(texts[start : start + _TEXTS_PER_FILE]))
    return np.concatenate(
        [read_archive(folder / f"{start}.npz", ["rows"])["rows"] for start in starts]
    )


def _key(texts: Sequence[str], model: str) -> str:
    """Return a hash of everything that decides the embeddings."""
    found = hashlib.sha256(f"{model}\n{_MAX_TOKENS}\n".encode())
    for path in sorted(Path(model).rglob("*")):
        if path.is_file():
            found.update(hashlib.sha256(path.read_bytes()).digest())
    for text in texts:
        found.update(hashlib.sha256(text.encode()).digest())
    return found.hexdigest()[:16]


def _write(path: Path, rows: NDArray[np.float32]) -> None:
    part = path.with_suffix(".part")
    with part.open("wb") as handle:
        np.savez(handle, rows=rows)
    part.replace(path)


def _encoder(model: str, fetch: bool) -> Any:
    try:
        import torch
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise MissingData(
            "embedding texts needs the package transformers: pip install 'holdfast[paper]'"
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=not fetch)
        network = AutoModel.from_pretrained(model, local_files_only=not fetch).eval()
    except (OSError, ValueError) as error:
        raise MissingData(
            f"the model {model!r} was not found: "
            "get it with --download, or give a folder that contains it with --embedder"
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        rows = []
        for start in range(0, len(texts), _TEXTS_PER_CALL):
            tokens = tokenizer(
                list(texts[start : start + _TEXTS_PER_CALL]),
                truncation=True,
                max_length=_MAX_TOKENS,
                padding=True,
                return_tensors="pt",
            )
            with torch.no_grad():
                states = network(**tokens).last_hidden_state
            real = tokens["attention_mask"][:, :, None].to(states.dtype)
            rows.append(((states * real).sum(1) / real.sum(1).clamp(min=1)).float().numpy())
        return np.concatenate(rows)

    return encode


GPT2 = "openai-community/gpt2"
HUB = "stanfordnlp/imdb"
EMBEDDINGS = Path("out/embeddings")
_EMBEDDINGS_FILE = "imdb/imdb_minilm.npz"
_ARRAYS = ("X_train", "y_train", "X_test", "y_test")
# Numbers of test reviews (out of 25,000); the others are for choosing settings.
_QUERIES, _PUBLIC = 10_000, 10_000


def imdb(
    folder: Path | None,
    embedder: str | None = None,
    cache: Path = EMBEDDINGS,
    fetch: bool = False,
    console: Console | None = None,
) -> Task:
    """Return the IMDB task, with the 25,000 training reviews as private records.

    The test reviews are split by a fixed permutation into queries, public records and records for
    choosing settings. `embedder` is a Hugging Face model, by name or by folder; without it,
    embeddings in the folder are used, or those of GPT-2 computed if there are none. `fetch` permits
    the download of missing reviews and models. `cache` is where embeddings are stored.
    """
    if embedder is None and folder is not None and (folder / _EMBEDDINGS_FILE).is_file():
        arrays = read_archive(folder / _EMBEDDINGS_FILE, _ARRAYS)
        return _split(
            arrays, "imdb_minilm.npz: 384 numbers per review by MiniLM, in place of GPT-2's 768"
        )
    model = embedder or GPT2
    arrays = {}
    for part in ("train", "test"):
        texts, answers = _reviews(folder, part, fetch)
        arrays[f"X_{part}"] = embed(texts, model, cache, fetch, console)
        arrays[f"y_{part}"] = answers
    return _split(arrays, f"reviews embedded by {Path(model).name}")


def _reviews(folder: Path | None, part: str, fetch: bool) -> tuple[list[str], Any]:
    import pyarrow as pa
    from pyarrow import parquet

    name = f"imdb/{part}.parquet"
    if fetch and (folder is None or not (folder / name).is_file()):
        return _from_hub(part)
    how = (
        f"Get it with --download (Hugging Face datasets, {HUB!r}), or write it there as a "
        "table with the columns text and label."
    )
    path = find_file(folder, [name], how)
    try:
        table = parquet.read_table(path, columns=["text", "label"])
    except (pa.ArrowException, OSError) as error:
        raise DamagedFile(
            f"{path}: not a readable table with the columns text and label ({error}); "
            "download it again"
        ) from error
    return table["text"].to_pylist(), table["label"].to_numpy()


def _from_hub(part: str) -> tuple[list[str], Any]:
    try:
        import datasets
    except ImportError as error:
        raise MissingData(
            "IMDB from Hugging Face needs the package datasets: pip install 'holdfast[paper]'"
        ) from error
    try:
        table = datasets.load_dataset(HUB, split=part)
    except Exception as error:  # the network and the hub may raise anything
        raise MissingData(
            f"{HUB!r} cannot be downloaded from Hugging Face ({error}); "
            "give the reviews in a folder with --data"
        ) from error
    return list(table["text"]), np.asarray(table["label"])


def _split(arrays: dict[str, Any], source: str) -> Task:
    if len(arrays["y_test"]) <= _QUERIES + _PUBLIC or any(
        len(arrays[f"X_{part}"]) != len(arrays[f"y_{part}"]) for part in ("train", "test")
    ):
        raise DamagedFile(
            f"{source}: expected one label per review, "
            f"and more than {_QUERIES + _PUBLIC:,} test reviews; download it again"
        )
    order = np.random.default_rng(0).permutation(len(arrays["y_test"]))
    queries, public, tune = np.split(order, [_QUERIES, _QUERIES + _PUBLIC])
    test_x, test_y = floats(arrays["X_test"]), labels(arrays["y_test"])
    return Task(
        name="imdb",
        source=source,
        x=floats(arrays["X_train"]),
        y=labels(arrays["y_train"]),
        query_x=test_x[queries],
        query_y=test_y[queries],
        public_x=test_x[public],
        tune_x=test_x[tune],
        tune_y=test_y[tune],
    )
