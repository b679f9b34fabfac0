"""Embedding texts with a real language model (tiny, untrained) from a folder.

Embeddings are computed once, can be resumed, and treat each text separately.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import holdfast as hf
from holdfast_paper.scans_and_reviews import imdb

# Importing transformers raises these warnings.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
embedding = import_module(
    "holdfast_paper.scans_and_reviews"
)  # a function of its package has this name too
TEXTS = ["a good film", "bad", "so good so bad a film " * 300, "the end"]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Save a small GPT-2 model and a tokenizer of a few words; return their folder."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("gpt2")
    words = ["<end>", *sorted({word for text in TEXTS for word in text.split()})]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<end>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", unk_token="<end>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(words), n_positions=512, n_embd=16, n_layer=2, n_head=2
    )
    transformers.GPT2Model(config).save_pretrained(folder)
    return str(folder)


def test_a_texts_row_does_not_depend_on_the_texts_beside_it(gpt2: str, tmp_path: Path) -> None:
    together = embedding.embed(TEXTS, gpt2, tmp_path)
    assert together.shape == (4, 16)
    for text, row in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(
            embedding.embed([text], gpt2, tmp_path)[0], row, rtol=1e-4, atol=1e-5
        )


def test_embedding_resumes_and_is_made_once(
    gpt2: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "_TEXTS_PER_FILE", 2)
    first = embedding.embed(TEXTS, gpt2, tmp_path)
    parts = sorted(tmp_path.rglob("*.npz"))
    assert len(parts) == 2
    parts[1].unlink()  # as after an interruption
    calls = []
    make = embedding._encoder
    monkeypatch.setattr(embedding, "_encoder", lambda *given: calls.append(given) or make(*given))
    assert np.array_equal(embedding.embed(TEXTS, gpt2, tmp_path), first)
    assert len(calls) == 1
    monkeypatch.setattr(
        embedding,
        "_encoder",
        lambda *given: pytest.fail("an encoder was built although all parts were cached"),
    )
    assert np.array_equal(embedding.embed(TEXTS, gpt2, tmp_path), first)
    parts[0].write_bytes(b"junk")
    with pytest.raises(hf.errors.DamagedFile, match="not a readable archive"):
        embedding.embed(TEXTS, gpt2, tmp_path)


def test_a_model_that_is_not_here_is_named(tmp_path: Path) -> None:
    with pytest.raises(hf.errors.InvalidInput, match="--embedder"):
        embedding.embed(TEXTS, str(tmp_path / "none"), tmp_path)


def test_reviews_from_a_folder_and_from_the_hub(
    gpt2: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = import_module("holdfast_paper.scans_and_reviews")
    monkeypatch.setattr(room, "_QUERIES", 2)
    monkeypatch.setattr(room, "_PUBLIC", 1)
    (tmp_path / "imdb").mkdir()
    for part in ("train", "test"):
        parquet.write_table(
            pa.table({"text": TEXTS, "label": [1, 0, 1, 0]}), tmp_path / "imdb" / f"{part}.parquet"
        )
    task = imdb(tmp_path, gpt2, tmp_path / "cache")
    assert (tuple(task.x.shape), len(task.query_y), len(task.public_x), len(task.tune_y)) == (
        (4, 16),
        2,
        1,
        1,
    )
    import datasets

    asked = []

    def load(name: str, split: str) -> object:
        asked.append((name, split))
        return datasets.Dataset.from_dict({"text": TEXTS, "label": [1, 0, 1, 0]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    again = imdb(None, gpt2, tmp_path / "cache", fetch=True)
    assert asked == [("stanfordnlp/imdb", "train"), ("stanfordnlp/imdb", "test")]
    assert again.digest == task.digest

    def offline(name: str, split: str) -> object:
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(hf.errors.InvalidInput, match="no network"):
        imdb(None, gpt2, tmp_path / "cache", fetch=True)
