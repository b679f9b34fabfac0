"""Jobs: run a prepared training job to its end, and tell the owner what went wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path

import torch

from ..certificates import certify as certify_queries
from ..certificates.usefulness import warn_after_training
from ..engines import Engine
from ..errors import InvalidInput, warn
from ..preprocessing import Preprocessing
from ..training.checkpoint import run_with_checkpoint
from ..training.job import Job, State
from ..training.loop import run
from ..workers import ProgressCallback
from .certified import Certified

_MEMBERS_AT_ONCE = 32  # members that wait for results of an engine at the same time


def run_job(
    job: Job,
    shape: tuple[int, ...],
    dataset: str,
    checkpoint: str | PathLike[str] | None,
    preprocessing: Preprocessing | None,
    engine: Engine,
    watch: ProgressCallback | None,
) -> Certified:
    """Run a prepared training job to its end and return the certified model."""
    if engine.remote and job.network.device.type != "cpu":
        raise InvalidInput(
            f"the model is on {job.network.device}: engine='ray' computes on processors; call "
            "model.cpu()"
        )
    if checkpoint is None:
        states = run(job, job.start(), watch, engine)
    else:
        states = run_with_checkpoint(job, Path(checkpoint), watch, engine)
    state = _last(states)
    ladder = tuple(reachable.bounds for reachable in state.boxes)
    warn_of_overflow(state)
    public = 0 if job.public is None else job.public.count(0)
    return Certified(
        job.network,
        job.recipe,
        job.neighbours,
        ladder,
        dataset,
        shape,
        state.growth,
        state.run_id,
        preprocessing,
        public,
        job.max_records_per_person,
    )


def run_members(
    run_one: Callable[[int], Certified], members: int, engine: Engine
) -> list[Certified]:
    """Train the members of an ensemble, at the same time if the engine has other processes."""
    if not engine.remote:
        return [run_one(member) for member in range(members)]
    with ThreadPoolExecutor(min(members, _MEMBERS_AT_ONCE)) as pool:
        try:
            return list(pool.map(run_one, range(members)))
        except BaseException:
            engine.close()
            pool.shutdown(cancel_futures=True)
            raise


def warn_of_useless_model(job: Job, trained: Certified) -> None:
    """Warn the owner of a model that is no better than the commonest class. NOT private."""
    given, right = [], []
    for batch in range(job.recipe.batches):
        for block in job.private.blocks(batch, job.block_rows):
            given.append(certify_queries(job.network, trained.ladder[:1], block.features)[0])
            right.append(block.labels)
    names = trained.class_names(range(trained.classes))
    warn_after_training(torch.cat(given), torch.cat(right), names, network=True)


def warn_of_overflow(state: State) -> None:
    """Warn the owner of numbers that outgrew the float range. NOT private.

    This is not an error, since a refusal would reveal something about a single record.
    """
    at_float_limit = [
        reachable.bounds.distance for reachable in state.boxes if reachable.bounds.at_float_limit
    ]
    if at_float_limit:
        warn(
            f"NOT private: the bounds outgrew the float range from distance {at_float_limit[0]} "
            "on; no query is certified there. "
            "Lower the learning rate or the number of steps, or rescale the features"
        )
    if state.overflowed:
        warn(
            f"NOT private: {state.overflowed} records overflow, so their gradients count as "
            "anything within the clip; rescale the features by a public rule"
        )


def work_units(job: Job) -> int:
    """Return the number of pairs of a record and a distance that training goes through."""
    public = 0 if job.public is None else job.public.count(0) * job.recipe.batches
    return (count_records(job) + public) * job.recipe.epochs * (len(job.distances) + 1)


def count_records(job: Job) -> int:
    """Return the number of private records of a job."""
    return sum(job.private.count(batch) for batch in range(job.recipe.batches))


def _last(states: Iterator[State]) -> State:
    return deque(states, maxlen=1).pop()
