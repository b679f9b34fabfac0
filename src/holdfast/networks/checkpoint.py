"""Private files that save work: the cache of front features, and checkpoints of training."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from ..checks import refuse_unwritable
from ..engines import Engine
from ..errors import DamagedFile, InvalidInput
from ..files import digest, read, write
from ..intervals import Interval
from ..kernels import UNITS
from ..layers import Front
from ..layers.registry import describe
from ..models import new_run_id
from ..version import __version__
from ..workers import ProgressCallback, progress_bar
from .boxes import ParameterBounds, ReachableBoxes
from .loop import Growth, Job, State, run

_CACHE_KIND = "holdfast cache of features"


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
    with progress_bar(
        "frozen layers", len(records), progress and front.has_user_layers
    ) as on_progress:
        return front(records, on_progress)


def _front_digest(front: Front) -> str:
    """Return a digest of the layers, their weights and their outputs for a few public records."""
    tensors = {
        f"{name}/{key}": value
        for name, module in front.layers
        for key, value in module.state_dict().items()
    }
    about = "\n".join(f"{name}: {module!r}" for name, module in front.layers)
    return digest(
        _CACHE_KIND,
        f"torch {torch.__version__}\n{about}",
        {**tensors, "probe": front.probe_features()},
    )


def _save(front: Front, path: Path, known: dict[bytes, Tensor]) -> None:
    keys = torch.tensor([list(key) for key in known], dtype=torch.uint8)
    write(
        path,
        _CACHE_KIND,
        {"front": _front_digest(front)},
        {"keys": keys, "features": torch.stack(list(known.values()))},
        owner_only=True,
    )


def _load(front: Front, path: Path) -> dict[bytes, Tensor]:
    header, tensors = read(path, _CACHE_KIND)
    if header["front"] != _front_digest(front):
        raise DamagedFile(
            f"{path}: these features were made by other frozen layers, "
            "or by another version of torch; give another cache path, or delete the file"
        )
    return {
        bytes(key.tolist()): row
        for key, row in zip(tensors["keys"], tensors["features"], strict=True)
    }


_KIND = "holdfast training checkpoint"
_SAVE_INTERVAL = 10.0  # minimum time between two checkpoints


def fingerprint(job: Job) -> str:
    """Return a hash of everything that decides the outcome of training. NOT private.

    It covers the model, the recipe, the relation, the distances and the records.
    """
    digest = hashlib.sha256()
    network = job.network
    layers = [
        describe(layer.name, network.model.get_submodule(layer.name)) for layer in network.layers
    ]
    about = [
        __version__,
        torch.__version__,
        UNITS,
        str(network.dtype),
        job.recipe.as_dict(),
        job.neighbours.value,
        job.distances,
        layers,
        network.trainable,
    ]
    digest.update(json.dumps(about, sort_keys=True).encode())
    for layer in network.layers:
        for name, value in network.model.get_submodule(layer.name).state_dict().items():
            digest.update(
                f"{layer.name}.{name} {tuple(value.shape)}".encode() + value.cpu().numpy().tobytes()
            )
    for source, batches in ((job.private, job.recipe.batches), (job.public, 1)):
        for batch in range(batches if source is not None else 0):
            assert source is not None
            digest.update(b"batch")
            for block in source.blocks(batch, job.block_rows):
                limits = None if block.counts is None else UNITS // block.counts
                for part in (block.features, block.labels, limits):
                    digest.update(b"" if part is None else part.numpy().tobytes())
    return digest.hexdigest()


def run_with_checkpoint(
    job: Job, path: Path, on_progress: ProgressCallback | None = None, engine: Engine | None = None
) -> Iterator[State]:
    """Yield the states of `run`, resumed from the checkpoint at `path` if there is one.

    The last finished step is saved to `path` even if training is interrupted.
    """
    refuse_unwritable(path)
    key = fingerprint(job)
    state = load(path, key, job) if path.exists() else job.start()
    saved, clock = state.step, time.monotonic()
    try:
        for state in run(job, state, on_progress, engine):  # noqa: B020 (it has its start)
            if time.monotonic() - clock > _SAVE_INTERVAL:
                save(path, key, state)
                saved, clock = state.step, time.monotonic()
            yield state
    finally:
        if state.step > saved:
            save(path, key, state)
    yield state


def save(path: Path, key: str, state: State) -> None:
    """Write a training state to `path`."""
    tensors = {}
    for index, reachable in enumerate(state.boxes):
        for part, box in (("box", reachable.bounds.box), ("buffer", reachable.buffers)):
            for name, interval in box.items():
                tensors[f"{index}/{part}/lower/{name}"] = interval.lower
                tensors[f"{index}/{part}/upper/{name}"] = interval.upper
    header = {
        "fingerprint": key,
        "run_id": state.run_id,
        "step": state.step,
        "growth": [asdict(grown) for grown in state.growth],
        "overflowed": state.overflowed,
    }
    write(path, _KIND, header, tensors, owner_only=True)


def load(path: Path, key: str, job: Job) -> State:
    """Read a state back; raise if it belongs to another model, recipe, relation or data set."""
    header, tensors = read(path, _KIND)
    if header["fingerprint"] != key:
        raise DamagedFile(
            f"{path}: this checkpoint belongs to another model, recipe, relation or data set; "
            "give another checkpoint path, or delete the file to start over"
        )
    boxes = []
    for index, distance in enumerate((0, *job.distances)):
        parts: dict[str, dict[str, Interval]] = {"box": {}, "buffer": {}}
        for part in parts:
            for name in job.network.trainable:
                if f"{index}/{part}/lower/{name}" in tensors:
                    ends = (tensors[f"{index}/{part}/{end}/{name}"] for end in ("lower", "upper"))
                    parts[part][name] = Interval(*ends)
        boxes.append(ReachableBoxes(ParameterBounds(distance, parts["box"]), parts["buffer"]))
    growth = tuple(Growth(**grown) for grown in header["growth"])
    # A finished run that is resumed gets a new id: the old one would reveal that the records have
    # not changed.
    run_id = header["run_id"] if header["step"] < job.recipe.steps else new_run_id()
    return State(run_id, header["step"], tuple(boxes), growth, header["overflowed"])
