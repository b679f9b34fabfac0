"""Compute the features of records after the frozen front, or read them from a cache."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from ..checks import refuse_unwritable
from ..errors import DamagedFile, InvalidInput
from ..files import digest, read, write
from ..layers import Front
from ..workers import progress_bar

_KIND = "holdfast cache of features"


def front_features(front: Front, records: Tensor, cache: Path | None, progress: bool) -> Tensor:
    """Return the records' features after the front layers, from the cache if they are in it.

    Args:
        front: The frozen layers.
        records: One row per record.
        cache: A file that stores features by the hash of their record. It is as private as the
            records, and only its owner can read it. Missing features are computed and added.
        progress: Whether to show a progress bar.

    Raises:
        InvalidInput: If a cache is given but there are no frozen layers, or it cannot be written.
        DamagedFile: If the cache is damaged, or was made by other frozen layers.
    """
    if cache is None:
        return _compute(front, records, progress)
    if not front.layers:
        raise InvalidInput(
            f"cache={str(cache)!r}: the model has no frozen layers in front, "
            "so there is nothing to cache; leave cache=None"
        )
    refuse_unwritable(cache)
    known = _load(front, cache) if cache.exists() else {}
    keys = [
        hashlib.blake2b(row.tobytes(), digest_size=32).digest()
        for row in records.contiguous().numpy()
    ]
    missing = {key: row for row, key in enumerate(keys) if key not in known}
    if missing:
        new = _compute(front, records[list(missing.values())], progress)
        known |= dict(zip(missing, new, strict=True))
        _save(front, cache, known)
    return torch.stack([known[key] for key in keys]) if keys else _compute(front, records, progress)


def _compute(front: Front, records: Tensor, progress: bool) -> Tensor:
    with progress_bar("frozen layers", len(records), progress and front.has_user_layers) as watch:
        return front(records, watch)


def _front_digest(front: Front) -> str:
    """Return a digest of the layers, their weights and their outputs for a few public records."""
    tensors = {
        f"{name}/{key}": value
        for name, module in front.layers
        for key, value in module.state_dict().items()
    }
    about = "\n".join(f"{name}: {module!r}" for name, module in front.layers)
    return digest(
        _KIND, f"torch {torch.__version__}\n{about}", {**tensors, "probe": front.probe_features()}
    )


def _save(front: Front, path: Path, known: dict[bytes, Tensor]) -> None:
    keys = torch.tensor([list(key) for key in known], dtype=torch.uint8)
    write(
        path,
        _KIND,
        {"front": _front_digest(front)},
        {"keys": keys, "features": torch.stack(list(known.values()))},
        owner_only=True,
    )


def _load(front: Front, path: Path) -> dict[bytes, Tensor]:
    header, tensors = read(path, _KIND)
    if header["front"] != _front_digest(front):
        raise DamagedFile(
            f"{path}: these features were made by other frozen layers, "
            "or by another version of torch; give another cache path, or delete the file"
        )
    return {
        bytes(key.tolist()): row
        for key, row in zip(tensors["keys"], tensors["features"], strict=True)
    }
