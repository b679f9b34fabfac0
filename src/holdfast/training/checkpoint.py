"""Checkpoints: resume interrupted training, or raise if anything has changed since."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from ..checks import refuse_unwritable
from ..engines import Engine
from ..errors import DamagedFile
from ..files import read, write
from ..intervals import Interval
from ..kernels import UNITS
from ..layers.registry import describe
from ..version import __version__
from ..workers import ProgressCallback
from .bounds import ParameterBounds
from .job import Growth, Job, State, new_run_id
from .loop import run
from .optimizer import ReachableBoxes

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
                for part in (block.features, block.labels, block.limits):
                    digest.update(b"" if part is None else part.numpy().tobytes())
    return digest.hexdigest()


def run_with_checkpoint(
    job: Job, path: Path, watch: ProgressCallback | None = None, engine: Engine | None = None
) -> Iterator[State]:
    """Yield the states of `run`, resumed from the checkpoint at `path` if there is one.

    The last finished step is saved to `path` even if training is interrupted.
    """
    refuse_unwritable(path)
    key = fingerprint(job)
    state = load(path, key, job) if path.exists() else job.start()
    saved, clock = state.step, time.monotonic()
    try:
        for state in run(job, state, watch, engine):  # noqa: B020 (run has received its start)
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
                    ends = (
                        tensors[f"{index}/{part}/{end}/{name}"].to(job.network.device)
                        for end in ("lower", "upper")
                    )
                    parts[part][name] = Interval(*ends)
        boxes.append(ReachableBoxes(ParameterBounds(distance, parts["box"]), parts["buffer"]))
    growth = tuple(Growth(**grown) for grown in header["growth"])
    # A finished run that is resumed gets a new id: the old one would reveal that the records have
    # not changed.
    run_id = header["run_id"] if header["step"] < job.recipe.steps else new_run_id()
    return State(run_id, header["step"], tuple(boxes), growth, header["overflowed"])
