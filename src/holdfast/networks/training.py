"""Training of networks: `train` for one model, `train_ensemble` for members that vote."""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from ..arrays import check_features, shape_text
from ..certificates import warn_after_training
from ..checks import check_integer
from ..engines import Engine, check_engine, open_engine
from ..errors import InvalidInput, warn
from ..kernels import UNITS
from ..layers import Network
from ..models import CertifiedEnsemble, EnsemblePart, Estimate
from ..preprocessing import Preprocessing
from ..records import (
    PARTS_MEMORY,
    Columns,
    Dataset,
    Rows,
    Split,
    dataset_and_recipe,
    normaliser,
    prepare,
    refuse_empty,
)
from ..relations import Neighbours
from ..workers import ProgressCallback, progress_bar
from .certified import Certified, certify
from .checkpoint import front_features, run_with_checkpoint
from .diagnosis import estimate
from .loop import Job, State, run
from .recipe import Recipe

_LARGEST_DISTANCE = 10**9
_MEMBERS_AT_ONCE = 32  # members that wait for results of an engine at the same time


def run_job(
    job: Job,
    data: Dataset,
    checkpoint: str | PathLike[str] | None,
    preprocessing: Preprocessing | None,
    engine: Engine,
    on_progress: ProgressCallback | None,
) -> Certified:
    """Run a prepared training job to its end and return the certified model."""
    if checkpoint is None:
        states = run(job, job.start(), on_progress, engine)
    else:
        states = run_with_checkpoint(job, Path(checkpoint), on_progress, engine)
    state = deque(states, maxlen=1).pop()
    ladder = tuple(reachable.bounds for reachable in state.boxes)
    warn_of_overflow(state)
    public = 0 if job.public is None else job.public.count(0)
    return Certified(
        job.network,
        job.recipe,
        job.neighbours,
        ladder,
        data.name,
        data.record_shape,
        state.growth,
        state.run_id,
        preprocessing,
        public,
        job.max_records_per_person,
        names=data.given_names,
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
            given.append(certify(job.network, trained.ladder[:1], block.features)[0])
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


def prepare_jobs(
    models: Sequence[nn.Module],
    data: Dataset,
    recipe: Recipe,
    *,
    neighbours: Neighbours | str = "add_remove",
    max_distance: int | None = None,
    distances: Iterable[int] | None = None,
    public: tuple[Any, Any] | None = None,
    cache: str | PathLike[str] | None = None,
    progress: bool = False,
) -> list[Job]:
    """Check everything that training was given, and return the job of every member."""
    refuse_empty(data)
    relation = data.relation(neighbours)
    if relation is Neighbours.REPLACE_PERSON:
        raise InvalidInput(
            "neighbours='replace' with persons is not available for networks; use "
            "'add_remove', under which an exchange counts as two moves, or a linear head"
        )
    grid, shape = distance_grid(max_distance, distances), data.record_shape
    if 0 in shape:
        raise InvalidInput(f"the records have shape {shape}: there is nothing to train on")
    if cache is not None and data.source.in_parts:
        raise InvalidInput("cache: not used for records in files, whose features are kept anyway")
    networks = [_checked_network(model, shape, recipe) for model in models]
    refuse_unlike_members(networks)
    classes = _class_count(networks[0], recipe, data)
    split = Split(recipe.seed, len(networks), recipe.batches)
    normaliser(recipe.batch_size, relation, 0, split)  # refuses before anything is read
    fronts = [
        partial(_front, network, _cache_of(cache, member, len(networks)), progress)
        for member, network in enumerate(networks)
    ]
    extras = [_public_rows(network, classes, data, public, front)
              for network, front in zip(networks, fronts, strict=True)]  # fmt: skip
    shapes = [network.front.shapes[-1] for network in networks]
    prepared = prepare(
        data, split, relation, classes=classes, dtype=networks[0].dtype,
        inputs=list(zip(fronts, shapes, strict=True)), progress=progress,
    )  # fmt: skip
    most = 0 if prepared.counts is None else int(prepared.counts.max())
    if most > UNITS:
        raise InvalidInput(
            f"a person has {most:,} records: expected at most {UNITS:,}, the number of units in "
            "which a gradient is clipped; give a public max_records_per_person, for example 100"
        )
    count = 0 if extras[0] is None else len(extras[0].labels)
    size = normaliser(recipe.batch_size, relation, prepared.units, split, count)
    recipe = replace(recipe, batch_size=size)
    return [
        Job(network, recipe, relation, grid, prepared.rows(member), extra,
            data.max_records_per_person)
        for member, (network, extra) in enumerate(zip(networks, extras, strict=True))
    ]  # fmt: skip


def _checked_network(model: nn.Module, shape: tuple[int, ...], recipe: Recipe) -> Network:
    """Return the network for records of a shape; raise if it cannot be trained by the recipe."""
    network = Network.of(model, shape)
    if network.device.type != "cpu":
        raise InvalidInput(
            f"the model is on {network.device}: bounds are computed on the CPU, where each sum has "
            "a known order; call model.cpu()"
        )
    _refuse_coefficients(recipe, network.dtype)
    if UNITS / recipe.clip > torch.finfo(network.dtype).max / UNITS:
        raise InvalidInput(
            f"clip={recipe.clip!r}: too small for a model in {network.dtype}; try clip=0.05"
        )
    return network


def _class_count(network: Network, recipe: Recipe, data: Dataset) -> int:
    """Return the number of classes; raise if model and data differ in it: both are public."""
    classes = recipe.loss_function.classes(network.outputs)
    if data.class_count not in (None, classes):
        names = list(data.class_names)
        raise InvalidInput(
            f"the model has {network.outputs} outputs, which with {recipe.loss!r} "
            f"is {classes} classes; "
            + (
                f"the schema names {len(names)}: {names}"
                if names
                else f"expected {data.class_count}"
            )
        )
    return classes


def _front(network: Network, cache: Path | None, progress: bool, records: Tensor) -> Tensor:
    return front_features(network.front, records, cache, progress)


def _cache_of(cache: str | PathLike[str] | None, member: int, members: int) -> Path | None:
    if cache is None:
        return None
    return Path(cache) if members == 1 else Path(f"{cache}.{member}")


def _public_rows(
    network: Network,
    classes: int,
    data: Dataset,
    public: tuple[Any, Any] | None,
    front: Callable[[Tensor], Tensor],
) -> Rows | None:
    """Return the public records, checked; None if there are none."""
    if public is None:
        return None
    if not isinstance(public, tuple | list) or len(public) != 2:
        raise InvalidInput("public: expected a pair (x, y) of public records")
    x, shape = public[0], data.record_shape
    if data.preprocessing is not None:
        x = data.preprocessing.apply(x, "public x")
    features = check_features(x, network.dtype, "public x")
    if features.shape[1:] != shape:
        raise InvalidInput(
            f"public x has shape {tuple(features.shape)}: "
            f"expected (records, {shape_text(shape)}), like x"
        )
    labels = data.class_numbers(public[1], len(features), classes, "public y")
    return Rows.of(front(features), labels)


def refuse_unlike_members(networks: Sequence[Network]) -> None:
    """Raise InvalidInput if the members of an ensemble cannot vote with each other."""
    if len({(network.outputs, network.dtype) for network in networks}) > 1:
        raise InvalidInput(
            "make_model: the members have different numbers of outputs or types; "
            "expected the same architecture"
        )


def distance_grid(max_distance: int | None, distances: Iterable[int] | None) -> tuple[int, ...]:
    """Return the distances to run; raise InvalidInput if they are not growing whole numbers."""
    if distances is None:
        return tuple(
            range(1, _distance("max_distance", 100 if max_distance is None else max_distance) + 1)
        )
    if max_distance is not None:
        raise InvalidInput("give either max_distance or distances, not both")
    if not isinstance(distances, Iterable):
        raise InvalidInput(f"distances={distances!r}: expected several growing whole numbers")
    grid = tuple(_distance("distances", k) for k in distances)
    if not grid or list(grid) != sorted(set(grid)):
        raise InvalidInput(f"distances={grid!r}: expected growing whole numbers, each at least 1")
    return grid


def _distance(name: str, value: int) -> int:
    """Return `value` as a distance, or raise InvalidInput.

    The upper limit keeps sums of whole units exact, whatever the records are.
    """
    distance = check_integer(name, value, 1)
    if distance > _LARGEST_DISTANCE:
        raise InvalidInput(f"{name}={distance}: expected at most {_LARGEST_DISTANCE:,}")
    return distance


def _refuse_coefficients(recipe: Recipe, dtype: torch.dtype) -> None:
    """Raise if a number of the recipe, or one derived from it, is infinite in the model's dtype."""
    factors = {
        name: getattr(recipe, name)
        for name in ("learning_rate", "min_learning_rate", "momentum", "weight_decay")
    }
    factors["momentum"] *= 1.0 + recipe.momentum if recipe.nesterov else 1.0
    for name, factor in factors.items():
        if factor > torch.finfo(dtype).max:
            raise InvalidInput(
                f"{name}={getattr(recipe, name)!r}: too large for a model in {dtype}; "
                "use a smaller one"
            )


def train(
    model: nn.Module,
    data: Any,
    y: Any = None,
    recipe: Any = None,
    *,
    neighbours: Neighbours | str = "add_remove",
    max_distance: int | None = None,
    distances: Iterable[int] | None = None,
    public: tuple[Any, Any] | None = None,
    engine: str = "local",
    checkpoint: str | PathLike[str] | None = None,
    progress: bool = True,
    cache: str | PathLike[str] | None = None,
    **columns: Unpack[Columns],
) -> Certified:
    """Train a copy of `model` on private records and bound it for every distance.

    Args:
        model: The torch module. Parameters with `requires_grad=False` are public and stay as they
            are.
        data: The private records, an `hf.Dataset`; or x, in the short form
            `train(model, x, y, recipe, ids=..., dataset=...)`, which gives the same bits.
        y: The recipe or, in the short form, the labels.
        recipe: How to train: an `hf.Recipe`. All of it is public.
        neighbours: The neighbour relation: "add_remove", "replace" or "remove".
        max_distance: Run every distance k = 1..max_distance; 100 if neither this nor `distances` is
            given.
        distances: Run a sparse grid of distances instead, on which the *rank* is the certified
            distance.
        public: A pair (x, y) of public records that are mixed into every batch and are the same in
            all neighbouring data sets.
        engine: Where the work runs: "local", or "ray" for a Ray cluster (the one at RAY_ADDRESS,
            otherwise one that is started here). The result is the same to the bit.
        checkpoint: A file from which to resume after an interruption. It is as private as the data.
        progress: Whether to show a progress bar.
        cache: A file that stores the output of leading frozen layers per record, so that a slow
            encoder runs once per record. It is as private as the data.
        columns: What the short form says about the records, as for `hf.Dataset`: ids, persons,
            max_records_per_person, preprocessing, classes, and `dataset`, the name.

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
    records, chosen = dataset_and_recipe(Recipe, data, y, recipe, columns)
    check_engine(engine)
    (job,) = prepare_jobs(
        [model],
        records,
        chosen,
        neighbours=neighbours,
        max_distance=max_distance,
        distances=distances,
        public=public,
        cache=cache,
        progress=progress,
    )
    title = f"bounding {len(job.distances)} distances"
    with (
        open_engine(engine) as opened,
        progress_bar(title, work_units(job), progress) as on_progress,
    ):
        trained = run_job(job, records, checkpoint, records.preprocessing, opened, on_progress)
    warn_of_useless_model(job, trained)
    return trained


def train_ensemble(
    make_model: Callable[[int], nn.Module],
    data: Any,
    y: Any = None,
    recipe: Any = None,
    *,
    members: int = 25,
    neighbours: Neighbours | str = "add_remove",
    max_distance: int | None = None,
    distances: Iterable[int] | None = None,
    public: tuple[Any, Any] | None = None,
    engine: str = "local",
    checkpoint: str | PathLike[str] | None = None,
    progress: bool = True,
    cache: str | PathLike[str] | None = None,
    **columns: Unpack[Columns],
) -> CertifiedEnsemble:
    """Train `members` models on disjoint parts of the records and bound each for every distance.

    A keyed hash of a record's id determines its member, independently of its batch.

    Args:
        make_model: A function that makes member number `seed`, from 0 on.
        data: The private records, as for `train`.
        y: The recipe or, in the short form, the labels.
        recipe: How to train each member. `recipe.batch_size` is the normaliser of each *member*:
            about records / members / batches.
        members: The number of members.
        neighbours: The neighbour relation, as for `train`. Under "replace", `ids` are required.
        max_distance: As for `train`, for each member.
        distances: As for `train`, for each member.
        public: As for `train`.
        engine: As for `train`.
        checkpoint: The beginning of a file name; there is one file per member.
        progress: Whether to show a progress bar.
        cache: The beginning of a file name; there is one file per member.
        columns: As for `train`.

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
    records, chosen = dataset_and_recipe(Recipe, data, y, recipe, columns)
    check_engine(engine)
    jobs = prepare_jobs(
        [make_model(seed) for seed in range(check_integer("members", members, 1))],
        records,
        chosen,
        neighbours=neighbours,
        max_distance=max_distance,
        distances=distances,
        public=public,
        cache=cache,
        progress=progress,
    )
    title = f"bounding {len(jobs[0].distances)} distances of {len(jobs)} models"
    work, call = sum(work_units(job) for job in jobs), secrets.token_hex(16)
    with open_engine(engine) as opened, progress_bar(title, work, progress) as on_progress:

        def run_one(member: int) -> Certified:
            path = None if checkpoint is None else f"{checkpoint}.{member}"
            part = EnsemblePart(chosen.seed, len(jobs), member, call)
            return replace(
                run_job(jobs[member], records, path, None, opened, on_progress), part=part
            )

        trained = run_members(run_one, len(jobs), opened)
    return CertifiedEnsemble(tuple(trained), records.preprocessing)


def estimate_training(
    make_model: Callable[[int], nn.Module],
    data: Any,
    y: Any = None,
    recipe: Any = None,
    *,
    members: int = 1,
    neighbours: Neighbours | str = "add_remove",
    max_distance: int | None = None,
    **columns: Unpack[Columns],
) -> Estimate:
    """Estimate the time, memory and file size of `train` or, for several members, `train_ensemble`.

    A few steps are run on a few records. The arguments are those of `train_ensemble`.

    Returns:
        About how much the whole run takes. NOT private.
    """
    private, chosen = dataset_and_recipe(Recipe, data, y, recipe, columns)
    models = [make_model(seed) for seed in range(check_integer("members", members, 1))]
    jobs = prepare_jobs(models, private, chosen, neighbours=neighbours, max_distance=max_distance)
    records = {id(job): count_records(job) for job in jobs}
    largest = estimate(max(jobs, key=lambda job: records[id(job)]))
    # Bytes of the features and copies of them, unless they are on disk.
    on_disk = private.source.in_parts
    width = 0 if on_disk else math.prod(private.record_shape)
    held = sum(records.values()) * width * 12 + (PARTS_MEMORY if on_disk else 0)
    # Members are trained one after the other, and saved in one file.
    return Estimate(largest.seconds * len(jobs), largest.memory + held, largest.file * len(jobs))
