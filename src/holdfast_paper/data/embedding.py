"""Texts as numbers: the mean of a public language model's last layer over a text's tokens; kept on disk, so that it is made once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from holdfast.records.folder import MissingData, read_archive

_TEXTS = 256  # kept in one file: what an interruption can cost
_AT_ONCE = 16
_TOKENS = 512  # of a text, from its beginning


def embed(texts: Sequence[str], model: str, cache: Path, fetch: bool = False, console: Console | None = None) -> NDArray[np.float32]:
    """One row a text. `model`: a folder, or a name at Hugging Face (downloaded only if `fetch`)."""
    folder = cache / _key(texts, model)
    folder.mkdir(parents=True, exist_ok=True)
    starts = range(0, len(texts), _TEXTS)
    missing = [start for start in starts if not (folder / f"{start}.npz").is_file()]
    if missing:
        encode = _encoder(model, fetch)
        shown = console or Console(quiet=True)
        for start in track(missing, f"embedding by {Path(model).name}", console=shown, disable=not shown.is_terminal):
            _write(folder / f"{start}.npz", encode(texts[start : start + _TEXTS]))
    return np.concatenate([read_archive(folder / f"{start}.npz", ["rows"])["rows"] for start in starts])


def _key(texts: Sequence[str], model: str) -> str:
    """Of all that decides the numbers."""
    found = hashlib.sha256(f"{model}\n{_TOKENS}\n".encode())
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
        raise MissingData("embedding texts needs the package transformers: pip install 'holdfast[paper]'") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=not fetch)
        network = AutoModel.from_pretrained(model, local_files_only=not fetch).eval()
    except (OSError, ValueError) as error:
        raise MissingData(
            f"the model {model!r} is not here: get it by --download, or give a folder that holds it with --embedder"
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        rows = []
        for start in range(0, len(texts), _AT_ONCE):
            tokens = tokenizer(
                list(texts[start : start + _AT_ONCE]), truncation=True, max_length=_TOKENS, padding=True, return_tensors="pt"
            )
            with torch.no_grad():
                states = network(**tokens).last_hidden_state
            real = tokens["attention_mask"][:, :, None].to(states.dtype)
            rows.append(((states * real).sum(1) / real.sum(1).clamp(min=1)).float().numpy())
        return np.concatenate(rows)

    return encode
