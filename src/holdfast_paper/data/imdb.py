"""IMDB: film reviews, positive or not, as embeddings by a public language model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from holdfast.errors import DamagedFile
from holdfast.examples.demo import Task, floats, labels
from holdfast.examples.tables import MissingData, find_file, read_archive

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
