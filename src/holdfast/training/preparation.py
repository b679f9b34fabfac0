"""Preparation: check everything that training was given, before any work starts.

Features behind the frozen front are computed here, once per run, or once for all runs with a cache file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_integer, refuse_unwritable
from ..errors import DamagedFile, InvalidInput
from ..files import digest, read, write
from ..kernels import UNITS
from ..layers import Front, Network
from ..preprocessing import Preprocessing
from ..progress import progress_bar
from ..records import Records, as_features, assign_parts, check_features, check_labels, content_ids, given_ids
from ..relations import Neighbours
from .loop import Job
from .recipe import Recipe

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
        raise InvalidInput(f"cache={str(cache)!r}: the model has no frozen layers in front, so there is nothing to cache; leave cache=None")
    refuse_unwritable(cache)
    known = _load(front, cache) if cache.exists() else {}
    keys = [hashlib.blake2b(row.tobytes(), digest_size=32).digest() for row in records.contiguous().numpy()]
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
    tensors = {f"{name}/{key}": value for name, module in front.layers for key, value in module.state_dict().items()}
    about = "\n".join(f"{name}: {module!r}" for name, module in front.layers)
    return digest(_KIND, f"torch {torch.__version__}\n{about}", {**tensors, "probe": front.probe_features()})


def _save(front: Front, path: Path, known: dict[bytes, Tensor]) -> None:
    keys = torch.tensor([list(key) for key in known], dtype=torch.uint8)
    write(path, _KIND, {"front": _front_digest(front)}, {"keys": keys, "features": torch.stack(list(known.values()))}, owner_only=True)


def _load(front: Front, path: Path) -> dict[bytes, Tensor]:
    header, tensors = read(path, _KIND)
    if header["front"] != _front_digest(front):
        raise DamagedFile(
            f"{path}: these features were made by other frozen layers, "
            "or by another version of torch; give another cache path, or delete the file"
        )
    return {bytes(key.tolist()): row for key, row in zip(tensors["keys"], tensors["features"], strict=True)}


@dataclass(frozen=True)
class Options:
    """Options that do not change the outcome of training."""

    cache: Path | None = None
    trust_device: bool = False
    progress: bool = False


DEFAULTS = Options()

_LARGEST_DISTANCE = 10**9


def preprocess(preprocessing: Preprocessing | None, x: Any, public: tuple[Any, Any] | None) -> tuple[Any, tuple[Any, Any] | None]:
    """Apply the public rules to the private and the public records.

    Raises InvalidInput if the rules were fitted on the private records.
    """
    if preprocessing is None:
        return x, public
    if not isinstance(preprocessing, Preprocessing):
        raise InvalidInput(f"preprocessing is a {type(preprocessing).__name__}: expected an hf.Preprocessing")
    if isinstance(public, tuple | list) and len(public) == 2:  # anything else is refused by prepare
        public = (preprocessing.apply(public[0], "public x"), public[1])
    return preprocessing.apply_private(x), public


def check_class_count(job: Job, preprocessing: Preprocessing | None) -> None:
    """Raise if model and schema differ in the number of classes; both numbers are public."""
    classes = job.recipe.loss_function.classes(job.network.outputs)
    if preprocessing is not None and preprocessing.classes and len(preprocessing.classes) != classes:
        raise InvalidInput(
            f"the model has {job.network.outputs} outputs, which with {job.recipe.loss!r} "
            f"is {classes} classes; the schema names {len(preprocessing.classes)}: "
            f"{list(preprocessing.classes)}"
        )


def prepare(
    model: nn.Module,
    x: Any,
    y: Any,
    recipe: Recipe,
    neighbours: Neighbours | str = "add_remove",
    max_distance: int | None = None,
    distances: Iterable[int] | None = None,
    ids: Iterable[Any] | None = None,
    public: tuple[Any, Any] | None = None,
    options: Options = DEFAULTS,
) -> tuple[Job, tuple[int, ...]]:
    """Check everything that `train` was given; return the job and the shape of one record."""
    relation = Neighbours.of(neighbours)
    if not isinstance(recipe, Recipe):
        raise InvalidInput(f"recipe is a {type(recipe).__name__}: expected an hf.Recipe")
    grid = _grid(max_distance, distances)
    x = as_features(x)
    if 0 in x.shape[1:]:
        raise InvalidInput(f"x has shape {tuple(x.shape)}: its records are empty, there is nothing to train on")
    shape = tuple(x.shape[1:])
    network = Network.of(model, shape)
    _refuse_device(network, options)
    _refuse_coefficients(recipe, network.dtype)
    if UNITS / recipe.clip > torch.finfo(network.dtype).max / UNITS:
        raise InvalidInput(f"clip={recipe.clip!r}: too small for a model in {network.dtype}; try clip=0.05")
    classes = recipe.loss_function.classes(network.outputs)
    features = check_features(x, network.dtype)
    labels = check_labels(y, len(features), classes)
    extra = None if public is None else _public(public, network, classes, shape, options)
    recipe = with_batch_size(recipe, relation, len(labels), 0 if extra is None else len(extra.labels))
    batch = _batches(features, labels, ids, recipe, relation)
    front = front_features(network.front, features, options.cache, options.progress)
    return Job(network, recipe, relation, grid, Records.of(front, labels, batch, recipe.batches), extra), shape


def _grid(max_distance: int | None, distances: Iterable[int] | None) -> tuple[int, ...]:
    if distances is None:
        return tuple(range(1, _distance("max_distance", 100 if max_distance is None else max_distance) + 1))
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


def _public(public: tuple[Any, Any], network: Network, classes: int, shape: tuple[int, ...], options: Options) -> Records:
    if not isinstance(public, tuple | list) or len(public) != 2:
        raise InvalidInput("public: expected a pair (x, y) of public records")
    features = check_features(public[0], network.dtype, "public x")
    if features.shape[1:] != shape:
        raise InvalidInput(f"public x has shape {tuple(features.shape)}: expected (records, {shape_text(shape)}), like x")
    labels = check_labels(public[1], len(features), classes, "public y")
    return Records.of(front_features(network.front, features, options.cache, options.progress), labels)


def with_batch_size(recipe: Recipe, relation: Neighbours, records: int, public: int) -> Recipe:
    """Return the recipe with the normaliser `batch_size` filled in.

    Only under `replace` is the number of records public, so only there may it be left open.
    """
    if recipe.batch_size is not None:
        return recipe
    count = -(-records // recipe.batches) + public
    if relation is not Neighbours.REPLACE:
        raise InvalidInput(
            f"batch_size=None: under {relation.value!r} the number of records is private, "
            "so the normaliser must be a public number; give a round one that you would choose "
            "without looking at the table, for example batch_size=1000 if you expect about "
            "a thousand records per batch"
        )
    return replace(recipe, batch_size=count)


def _batches(features: Tensor, labels: Tensor, ids: Iterable[Any] | None, recipe: Recipe, relation: Neighbours) -> Tensor | None:
    codes = None if ids is None else given_ids(ids, len(labels))
    if recipe.batches == 1:
        return None
    if codes is None and relation is Neighbours.REPLACE:
        raise InvalidInput(
            f"batches={recipe.batches} under 'replace' needs ids: an exchanged record keeps "
            "its id, and with it its batch; pass ids=, use one batch, or use 'add_remove'"
        )
    codes = content_ids(features, labels) if codes is None else codes
    return assign_parts(codes, recipe.batches, recipe.seed, b"batch")


def _refuse_device(network: Network, options: Options) -> None:
    if network.device.type != "cpu" and not options.trust_device:
        raise InvalidInput(
            f"the model is on {network.device}: sums on this device are computed by its library, "
            "and a certificate holds only if there a record's result does not depend on the other "
            "records in its batch; call model.cpu(), or pass trust_device=True"
        )


def _refuse_coefficients(recipe: Recipe, dtype: torch.dtype) -> None:
    """Raise if a number of the recipe, or one derived from it, is infinite in the model's dtype."""
    factors = {name: getattr(recipe, name) for name in ("learning_rate", "min_learning_rate", "momentum", "weight_decay")}
    factors["momentum"] *= 1.0 + recipe.momentum if recipe.nesterov else 1.0
    for name, factor in factors.items():
        if factor > torch.finfo(dtype).max:
            raise InvalidInput(f"{name}={getattr(recipe, name)!r}: too large for a model in {dtype}; use a smaller one")


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as text, such as "3, 28, 28"."""
    return ", ".join(map(str, shape))
