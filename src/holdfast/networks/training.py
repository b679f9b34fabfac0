"""Training of networks: `train` for one model, `train_ensemble` for members that vote."""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..arrays import as_features
from ..certificates import warn_after_training
from ..checks import check_integer, check_new_name
from ..engines import Engine, check_engine, open_engine
from ..errors import InvalidInput, warn
from ..models import CertifiedEnsemble, EnsemblePart, Estimate
from ..preprocessing import Preprocessing
from ..records import PARTS_MEMORY, ParquetRecords
from ..relations import Neighbours
from ..workers import ProgressCallback, progress_bar
from .certified import Certified
from .certified import certify as certify_queries
from .checkpoint import run_with_checkpoint
from .diagnosis import estimate
from .loop import Job, State, run
from .preparation import (
    Settings,
    check_class_count,
    prepare,
    prepare_members,
    prepare_streamed,
    preprocess,
)
from .recipe import Recipe

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


def train(
    model: nn.Module,
    x: Any,
    y: Any,
    recipe: Recipe,
    *,
    neighbours: Neighbours | str = "add_remove",
    max_distance: int | None = None,
    distances: Iterable[int] | None = None,
    ids: Iterable[Any] | None = None,
    persons: Iterable[Any] | None = None,
    max_records_per_person: int | None = None,
    public: tuple[Any, Any] | None = None,
    preprocessing: Preprocessing | None = None,
    engine: str = "local",
    dataset: str = "default",
    checkpoint: str | PathLike[str] | None = None,
    progress: bool = True,
    cache: str | PathLike[str] | None = None,
    trust_device: bool = False,
) -> Certified:
    """Train a copy of `model` on the records (x, y) and bound it for every distance.

    Args:
        model: The torch module. Parameters with `requires_grad=False` are public and stay as they
            are.
        x: The private features, one row per record: a tensor, an array, or a table if
            `preprocessing` names columns; or `hf.ParquetRecords`, which may be larger than memory.
        y: The labels, integers from 0 on, one per record; None for `hf.ParquetRecords`.
        recipe: How to train. All of it is public.
        neighbours: The neighbour relation: "add_remove", "replace" or "remove".
        max_distance: Run every distance k = 1..max_distance; 100 if neither this nor `distances` is
            given.
        distances: Run a sparse grid of distances instead, on which the *rank* is the certified
            distance.
        ids: One unique integer or string per record. Without it, the id of a record is a hash of
            its content.
        persons: The owner of each record, an integer or a string: privacy is then per person, and
            `recipe.batch_size` is a public number of persons. Records of a person share a batch.
        max_records_per_person: The most records of one person that are used; a hash of the records
            chooses them. None: all of them.
        public: A pair (x, y) of public records that are mixed into every batch and are the same in
            all neighbouring data sets.
        preprocessing: Public rules that compute the features of x, of the public x and of every
            query.
        engine: Where the work runs: "local", or "ray" for a Ray cluster (the one at RAY_ADDRESS,
            otherwise one that is started here). The result is the same to the bit.
        dataset: The owner's name for the private data; a budget in the ledger belongs to it.
        checkpoint: A file from which to resume after an interruption. It is as private as the data.
        progress: Whether to show a progress bar.
        cache: A file that stores the output of leading frozen layers per record, so that a slow
            encoder runs once per record. It is as private as the data.
        trust_device: Whether to train on a device other than the CPU. There, certificates hold only
            if the sums of the device's library for one record do not depend on the records beside
            it.

    Returns:
        The trained model with a box of parameters per distance. It is NOT private.

    Raises:
        InvalidInput: If an argument is not valid or cannot be certified; raised before any work.
        UnsupportedModel: If the model has a layer that holdfast cannot bound.
        DamagedFile: If the checkpoint or the cache is damaged, or belongs to another run.
        EngineUnavailable: If Ray cannot be reached, or loses too many workers.

    Example:
        >>> import holdfast as hf, torch
        >>> x = torch.tensor([[-1.0], [-0.9], [0.9], [1.0]])
        >>> y = torch.tensor([0, 0, 1, 1])
        >>> recipe = hf.Recipe(clip=0.5, batch_size=4)
        >>> model = torch.nn.Linear(1, 2)
        >>> certified = hf.train(model, x, y, recipe, max_distance=2, progress=False)
        >>> certified.distances
        (1, 2)
    """
    dataset = check_new_name("dataset", dataset)
    settings = Settings(
        neighbours=neighbours,
        max_distance=max_distance,
        distances=distances,
        ids=ids,
        persons=persons,
        max_records_per_person=max_records_per_person,
        public=public,
        preprocessing=preprocessing,
        cache=cache,
        trust_device=trust_device,
        progress=progress,
    )
    check_engine(engine)
    job, shape = _prepare_one(model, x, y, recipe, settings)
    about = f"bounding {len(job.distances)} distances"
    with open_engine(engine) as opened, progress_bar(about, work_units(job), progress) as watch:
        trained = run_job(job, shape, dataset, checkpoint, preprocessing, opened, watch)
    warn_of_useless_model(job, trained)
    return trained


def train_ensemble(
    make_model: Callable[[int], nn.Module],
    x: Any,
    y: Any,
    recipe: Recipe,
    *,
    members: int = 25,
    neighbours: Neighbours | str = "add_remove",
    max_distance: int | None = None,
    distances: Iterable[int] | None = None,
    ids: Iterable[Any] | None = None,
    persons: Iterable[Any] | None = None,
    max_records_per_person: int | None = None,
    public: tuple[Any, Any] | None = None,
    preprocessing: Preprocessing | None = None,
    engine: str = "local",
    dataset: str = "default",
    checkpoint: str | PathLike[str] | None = None,
    progress: bool = True,
    cache: str | PathLike[str] | None = None,
    trust_device: bool = False,
) -> CertifiedEnsemble:
    """Train `members` models on disjoint parts of the records and bound each for every distance.

    A keyed hash of a record's id determines its member, independently of its batch.

    Args:
        make_model: A function that makes member number `seed`, from 0 on.
        x: The private features, as for `train`.
        y: The labels, as for `train`.
        recipe: How to train each member. `recipe.batch_size` is the normaliser of each *member*:
            about records / members / batches.
        members: The number of members.
        neighbours: The neighbour relation, as for `train`. Under "replace", `ids` are required.
        max_distance: As for `train`, for each member.
        distances: As for `train`, for each member.
        ids: As for `train`.
        persons: As for `train`; records of a person share a member.
        max_records_per_person: As for `train`.
        public: As for `train`.
        preprocessing: As for `train`.
        engine: As for `train`.
        dataset: As for `train`.
        checkpoint: The beginning of a file name; there is one file per member.
        progress: Whether to show a progress bar.
        cache: The beginning of a file name; there is one file per member.
        trust_device: As for `train`.

    Returns:
        The members, whose vote can be certified farther than any single model. NOT private.

    Raises:
        InvalidInput: As for `train`, or if the members are not of the same architecture.
        UnsupportedModel: As for `train`.
        DamagedFile: As for `train`.
        EngineUnavailable: As for `train`.

    Example:
        >>> import holdfast as hf, torch
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> y, recipe = (x[:, 0] > 0).long(), hf.Recipe(batch_size=10)
        >>> make = lambda seed: torch.nn.Linear(1, 2)
        >>> options = {"members": 2, "max_distance": 1, "progress": False}
        >>> ensemble = hf.train_ensemble(make, x, y, recipe, **options)
        >>> len(ensemble.members)
        2
    """
    dataset = check_new_name("dataset", dataset)
    settings = Settings(
        neighbours=neighbours,
        max_distance=max_distance,
        distances=distances,
        ids=ids,
        persons=persons,
        max_records_per_person=max_records_per_person,
        public=public,
        preprocessing=preprocessing,
        cache=cache,
        trust_device=trust_device,
        progress=progress,
    )
    check_engine(engine)
    jobs = _prepare_ensemble(make_model, x, y, recipe, members, settings)
    about = f"bounding {len(jobs[0][0].distances)} distances of {len(jobs)} models"
    work, call = sum(work_units(job) for job, _ in jobs), secrets.token_hex(16)
    with open_engine(engine) as opened, progress_bar(about, work, progress) as watch:

        def run_one(member: int) -> Certified:
            path = None if checkpoint is None else f"{checkpoint}.{member}"
            part = EnsemblePart(recipe.seed, len(jobs), member, call)
            return replace(run_job(*jobs[member], dataset, path, None, opened, watch), part=part)

        return CertifiedEnsemble(tuple(run_members(run_one, len(jobs), opened)), preprocessing)


def estimate_training(
    make_model: Callable[[int], nn.Module],
    x: Any,
    y: Any,
    recipe: Recipe,
    *,
    members: int = 1,
    neighbours: Neighbours | str = "add_remove",
    max_distance: int | None = None,
    ids: Iterable[Any] | None = None,
    persons: Iterable[Any] | None = None,
    max_records_per_person: int | None = None,
    preprocessing: Preprocessing | None = None,
) -> Estimate:
    """Estimate the time, memory and file size of `train` or, for several members, `train_ensemble`.

    A few steps are run on a few records. The arguments are those of `train_ensemble`.

    Returns:
        About how much the whole run takes. NOT private.
    """
    settings = Settings(
        neighbours=neighbours,
        max_distance=max_distance,
        ids=ids,
        persons=persons,
        max_records_per_person=max_records_per_person,
        preprocessing=preprocessing,
    )
    if members == 1:
        jobs = [_prepare_one(make_model(0), x, y, recipe, settings)]
    else:
        jobs = _prepare_ensemble(make_model, x, y, recipe, members, settings)
    records = {id(job): count_records(job) for job, _ in jobs}
    largest = estimate(max((job for job, _ in jobs), key=lambda job: records[id(job)]))
    # Bytes of the features and copies of them, unless they are on disk.
    on_disk = isinstance(x, ParquetRecords)
    width = 0 if on_disk else math.prod(jobs[0][1])
    held = sum(records.values()) * width * 12 + (PARTS_MEMORY if on_disk else 0)
    # Members are trained one after the other, and saved in one file.
    return Estimate(largest.seconds * len(jobs), largest.memory + held, largest.file * len(jobs))


def _prepare_one(
    model: nn.Module, x: Any, y: Any, recipe: Recipe, settings: Settings
) -> tuple[Job, tuple[int, ...]]:
    if isinstance(x, ParquetRecords):
        _, prepared = preprocess(None, _settings_of(x, y, settings), private=False)
        ((job, shape),) = prepare_streamed([model], x, recipe, prepared)
    else:
        x, prepared = preprocess(x, settings)
        if not len(as_features(x)):
            raise InvalidInput("x is empty: there is nothing to train on")
        job, shape = prepare(model, x, y, recipe, prepared)
    check_class_count(job, settings.preprocessing)
    return job, shape


def _settings_of(records: ParquetRecords, y: Any, settings: Settings) -> Settings:
    """Return the settings for records that carry their labels, ids and owners."""
    if y is not None or settings.ids is not None or settings.persons is not None:
        raise InvalidInput(
            "y, ids and persons are columns of hf.ParquetRecords: name them there, and pass y=None"
        )
    # What they hold is read later; here it matters whether there are any.
    return replace(
        settings,
        ids=None if records.id is None else (),
        persons=None if records.person is None else (),
    )


def _prepare_ensemble(
    make_model: Callable[[int], nn.Module],
    x: Any,
    y: Any,
    recipe: Recipe,
    members: int,
    settings: Settings,
) -> list[tuple[Job, tuple[int, ...]]]:
    if isinstance(x, ParquetRecords):
        _, prepared = preprocess(None, _settings_of(x, y, settings), private=False)
        models = [make_model(seed) for seed in range(check_integer("members", members, 1))]
        jobs = prepare_streamed(models, x, recipe, prepared)
    else:
        x, prepared = preprocess(x, settings)
        jobs = prepare_members(make_model, x, y, recipe, members, prepared)
    check_class_count(jobs[0][0], settings.preprocessing)
    return jobs
