"""IMDB: film reviews, praise or not, as embeddings of a public language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from holdfast.errors import DamagedFile
from holdfast.examples.task import Task, floats, labels
from holdfast.records.folder import MissingData, find, read_archive

from .embedding import embed

GPT2 = "openai-community/gpt2"
HUB = "stanfordnlp/imdb"
EMBEDDINGS = Path("out/embeddings")
_GIVEN = "imdb/imdb_minilm.npz"
_ARRAYS = ("X_train", "y_train", "X_test", "y_test")
_QUERIES, _PUBLIC = 10_000, 10_000  # of the 25,000 test reviews; the others are for choosing settings


def imdb(
    folder: Path | None, embedder: str | None = None, cache: Path = EMBEDDINGS, fetch: bool = False, console: Console | None = None
) -> Task:
    """Private: the 25,000 training reviews. Of the test reviews, by a fixed lot: queries, public ones, ones for choosing settings.

    `embedder`: a model of Hugging Face, by name or by folder; without, embeddings that lie in the folder are used, or
    else GPT-2's are made. `fetch` lets missing reviews and models be downloaded. `cache`: where embeddings are kept.
    """
    if embedder is None and folder is not None and (folder / _GIVEN).is_file():
        arrays = read_archive(folder / _GIVEN, _ARRAYS)
        return _split(arrays, "imdb_minilm.npz: 384 numbers a review by MiniLM, in place of GPT-2's 768")
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
    how = f"Get it by --download (Hugging Face datasets, {HUB!r}), or write it there as a table with the columns text and label."
    path = find(folder, [name], how)
    try:
        table = parquet.read_table(path, columns=["text", "label"])
    except (pa.ArrowException, OSError) as error:
        raise DamagedFile(f"{path}: not a readable table with the columns text and label ({error}); get it again") from error
    return table["text"].to_pylist(), table["label"].to_numpy()


def _from_hub(part: str) -> tuple[list[str], Any]:
    try:
        import datasets
    except ImportError as error:
        raise MissingData("IMDB from Hugging Face needs the package datasets: pip install 'holdfast[paper]'") from error
    try:
        table = datasets.load_dataset(HUB, split=part)
    except Exception as error:  # whatever the network and the hub raise
        raise MissingData(f"{HUB!r} cannot be fetched from Hugging Face ({error}); give the reviews in a folder with --data") from error
    return list(table["text"]), np.asarray(table["label"])


def _split(arrays: dict[str, Any], source: str) -> Task:
    if len(arrays["y_test"]) <= _QUERIES + _PUBLIC or any(
        len(arrays[f"X_{part}"]) != len(arrays[f"y_{part}"]) for part in ("train", "test")
    ):
        raise DamagedFile(f"{source}: expected a label for each review, and more than {_QUERIES + _PUBLIC:,} test reviews; get it again")
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
