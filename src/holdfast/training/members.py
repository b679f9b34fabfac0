"""Members: split records among the members of an ensemble, before the first one is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn

from ..arrays import as_features, check_features, check_labels
from ..checks import check_integer
from ..errors import InvalidInput
from ..layers import Network
from ..records import assign_parts, content_ids, given_ids, owner_codes
from .job import Job
from .preparation import (
    Settings,
    prepare,
    refuse_other_recipes,
    refuse_unlike_members,
    with_batch_size,
)
from .recipe import Recipe


def prepare_members(
    make_model: Callable[[int], nn.Module],
    x: Any,
    y: Any,
    recipe: Recipe,
    members: int,
    settings: Settings,
) -> list[tuple[Job, tuple[int, ...]]]:
    """Split the records and check the job of every member, before the first one is trained."""
    count, relation = check_integer("members", members, 1), settings.relation
    features = as_features(x)
    if not len(features):
        raise InvalidInput("x is empty: there is nothing to train on")
    refuse_other_recipes(recipe)
    recipe = with_batch_size(
        recipe, relation, -(-len(features) // count), _public_count(settings.public)
    )
    if isinstance(settings.distances, Iterable):
        settings = replace(settings, distances=tuple(settings.distances))
    settings = replace(settings, ids=_as_list(settings.ids), persons=_as_list(settings.persons))
    networks = [Network.of(make_model(seed), tuple(features.shape[1:])) for seed in range(count)]
    labels = check_labels(y, len(features), recipe.loss_function.classes(networks[0].outputs))
    codes = _codes(features, labels, settings, networks[0].dtype, count)
    part = assign_parts(codes, count, recipe.seed, b"member")
    jobs = []
    for member, network in enumerate(networks):
        chosen = part == member
        own = replace(
            settings,
            ids=_chosen(settings.ids, chosen),
            persons=_chosen(settings.persons, chosen),
            cache=None if settings.cache is None else f"{settings.cache}.{member}",
        )
        jobs.append(prepare(network.model, features[chosen], labels[chosen], recipe, own))
    refuse_unlike_members([job.network for job, _ in jobs])
    return jobs


def _as_list(ids: Iterable[Any] | None) -> Any:
    return list(ids) if isinstance(ids, Iterable) and not isinstance(ids, str | bytes) else ids


def _chosen(ids: Any, chosen: Tensor) -> list[Any] | None:
    return None if ids is None else list(compress(ids, chosen.tolist()))


def _public_count(public: tuple[Any, Any] | None) -> int:
    """Return the number of public records.

    Whether they are valid is checked when each member is prepared.
    """
    return len(public[1]) if isinstance(public, tuple | list) and len(public) == 2 else 0


def _codes(
    features: Tensor,
    labels: Tensor,
    settings: Settings,
    dtype: torch.dtype,
    members: int,
) -> list[bytes]:
    """Return the ids by which records are assigned to members: their own, or their owners'."""
    if settings.persons is not None:
        return owner_codes(settings.persons, len(labels))
    if settings.ids is not None:
        return given_ids(settings.ids, len(labels))
    if settings.relation.exchanges and members > 1:
        raise InvalidInput(
            f"members={members} under 'replace' needs ids: an exchanged record keeps its id, "
            "and with it its member; pass ids=, or use 'add_remove'"
        )
    return content_ids(check_features(features, dtype), labels)
