"""Training of linear heads: `train_linear`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
import torch
from torch import nn

from ..certificates import warn_after_training
from ..checks import check_integer
from ..engines import check_engine, open_engine
from ..errors import InvalidInput, warn
from ..models import CertifiedEnsemble, EnsemblePart, Estimate, saved_size
from ..records import (
    PARTS_MEMORY,
    Columns,
    Dataset,
    Prepared,
    Split,
    dataset_and_recipe,
    normaliser,
    prepare,
    refuse_empty,
)
from ..relations import Neighbours
from ..workers import progress_bar
from .ball import FARTHEST, Schedule
from .certified import CertifiedHead
from .descent import HeadBlocks, descend
from .loops import scores
from .recipe import LinearRecipe
from .schemes import BIAS, HeadInputs, Scheme, make_scheme

_TRIAL_TRAVEL = 5.0  # of the run from which time is estimated


def head_relation(neighbours: Neighbours | str) -> Neighbours:
    """Return the relation; raise InvalidInput if it is not one that heads are certified for."""
    relation = Neighbours.of(neighbours)
    if relation is Neighbours.REMOVE:
        raise InvalidInput(
            "neighbours='remove': a head is certified under 'add_remove', whose distances hold for "
            "removals too, or under 'replace'"
        )
    return relation


def distance_cap(max_distance: int | None) -> int | None:
    """Return the largest distance that a certificate states, or None."""
    if max_distance is None:
        return None
    cap = check_integer("max_distance", max_distance, 1)
    if cap > FARTHEST:
        raise InvalidInput(f"max_distance={cap}: expected at most {FARTHEST:,}, or None")
    return cap


def train_linear(
    data: Any,
    y: Any = None,
    recipe: Any = None,
    *,
    neighbours: Neighbours | str = "add_remove",
    max_distance: int | None = None,
    members: int = 1,
    multiclass: str = "pairs",
    encoder: nn.Module | None = None,
    offset: nn.Module | None = None,
    engine: str = "local",
    progress: bool = True,
    **columns: Unpack[Columns],
) -> CertifiedHead | CertifiedEnsemble:
    """Train a linear head on public features, with certificates for every distance.

    The loss is convex, so k moves change the weights by at most k times a number that is known
    before training, whatever the records are and however many steps are taken. Distances have no
    cap, and certifying a query takes one product.

    Args:
        data: The private records, an `hf.Dataset`; or x, in the short form
            `train_linear(x, y, recipe, classes=..., dataset=...)`, which gives the same bits.
        y: The recipe or, in the short form, the labels.
        recipe: How to train: an `hf.LinearRecipe`. All of it is public.
        neighbours: The neighbour relation: "add_remove" or "replace".
        max_distance: The largest distance that a certificate states; None: no cap.
        members: The number of heads, trained on disjoint parts of the records, that vote. The
            recipe's batch size is that of each member.
        multiclass: "pairs", one head per pair of classes; "one_vs_rest" (which "pairs" means for
            more than 30 classes); or "softmax", which suits a release of the weights.
        encoder: A public torch module from records to features; it is frozen. None: the records are
            the features.
        offset: A public torch module from records to logits, which are added to the head's scores.
        engine: Where the work runs: "local" or "ray", as for `train`.
        progress: Whether to show a progress bar.
        columns: What the short form says about the records, as for `hf.Dataset`: classes, ids,
            persons, max_records_per_person, preprocessing, and `dataset`, the name.

    Returns:
        The head or, for several members, an ensemble. It is NOT private.

    Raises:
        InvalidInput: If an argument is not valid; raised before any work.
        UnsupportedModel: If encoder or offset is not a module that maps one record to one row.
        EngineUnavailable: If Ray cannot be reached, or loses too many workers.

    Example:
        >>> import holdfast as hf, torch
        >>> x, y = torch.tensor([[-1.0], [1.0]] * 200), torch.tensor([0, 1] * 200)
        >>> recipe = hf.LinearRecipe(batch_size=400, travel=10.0)
        >>> head = hf.train_linear(x, y, recipe, classes=2, progress=False)
        >>> bool(head.certify([[1.0]]).distances > 100)
        True
    """
    records, chosen = dataset_and_recipe(LinearRecipe, data, y, recipe, columns)
    job = prepare_job(
        records,
        chosen,
        neighbours=neighbours,
        max_distance=max_distance,
        members=members,
        multiclass=multiclass,
        encoder=encoder,
        offset=offset,
        progress=progress,
    )
    return job.train(progress, check_engine(engine))


def estimate_linear_training(
    data: Any, y: Any = None, recipe: Any = None, *, members: int = 1, **settings: Any
) -> Estimate:
    """Estimate the time, memory and file size of `train_linear`.

    A few steps are run on all records. The arguments are those of `train_linear`.

    Returns:
        About how much the whole run takes. NOT private.
    """
    columns: Any = {n: settings.pop(n) for n in Columns.__annotations__ if n in settings}
    records, chosen = dataset_and_recipe(LinearRecipe, data, y, recipe, columns)
    trial = replace(chosen, travel=_TRIAL_TRAVEL)
    settings |= {"members": members, "progress": False}
    train_linear(records, trial, **settings)  # compiles the loops
    started = time.monotonic()
    trained = train_linear(records, trial, **settings)
    seconds = time.monotonic() - started
    first = trained.members[0]
    assert isinstance(first, CertifiedHead)
    bend = first.scheme.loss(chosen).curvature
    steps = [Schedule.of(each, bend).count for each in (chosen, trial)]
    # Numbers about each record, and its features, unless they are on disk.
    on_disk = records.source.in_parts
    held = 3 * 8 * records.count * (16 if on_disk else first.inputs.width)
    held += PARTS_MEMORY if on_disk else 0
    return Estimate(seconds * steps[0] / steps[1], held, saved_size(trained))


@dataclass(frozen=True, eq=False)
class HeadJob:
    """Everything that training of heads needs, checked."""

    records: Prepared
    scheme: Scheme
    inputs: HeadInputs
    head: CertifiedHead  # with weights of 0
    members: int

    def train(self, progress: bool, engine: str) -> CertifiedHead | CertifiedEnsemble:
        """Train all members, and warn the owner of what makes a poor head."""
        recipe = self.head.recipe
        schedule = Schedule.of(recipe, self.scheme.loss(recipe).curvature)
        work, call = schedule.count * self.members, secrets.token_hex(16)
        trained = []
        arranged = self.arranged(progress)
        blocks = next(arranged)
        _warn_owner(blocks, self)
        with open_engine(engine) as opened, progress_bar("training", work, progress) as on_progress:
            for member in range(self.members):
                blocks = next(arranged) if member else blocks
                weights = descend(recipe, self.scheme, blocks, on_progress, opened)
                part = EnsemblePart(recipe.seed, self.members, member, call)
                trained.append(
                    replace(
                        self.head,
                        weights=torch.from_numpy(weights),
                        run_id=secrets.token_hex(16),
                        part=None if self.members == 1 else part,
                    )
                )
        if self.members == 1:
            _warn_if_useless(trained[0], blocks)
            return trained[0]
        rules = self.head.preprocessing
        return CertifiedEnsemble(
            tuple(replace(head, preprocessing=None) for head in trained), rules
        )

    def arranged(self, progress: bool = False) -> Iterator[HeadBlocks]:
        """Yield the records of each member, in the order in which they are added up."""
        encoder = self.inputs.encoder
        slow = progress and encoder is not None and encoder.has_user_layers
        for member in range(self.members):
            rows = self.records.sorted_rows(member)
            with progress_bar("encoder", len(rows.labels), slow) as on_progress:
                blocks = HeadBlocks.arrange(rows, self.inputs, self.scheme, on_progress)
            rows.features.close()
            if member == self.members - 1:
                self.records.close()  # as large as what was arranged
            yield blocks


def prepare_job(
    data: Dataset,
    recipe: LinearRecipe,
    *,
    neighbours: Neighbours | str = "add_remove",
    max_distance: int | None = None,
    members: int = 1,
    multiclass: str = "pairs",
    encoder: nn.Module | None = None,
    offset: nn.Module | None = None,
    progress: bool = False,
) -> HeadJob:
    """Check everything that training was given, and decide where each record goes."""
    refuse_empty(data)
    members = check_integer("members", members, 1)
    relation, cap = head_relation(data.relation(neighbours)), distance_cap(max_distance)
    if relation is Neighbours.REPLACE_PERSON and members > 1:
        # An exchanged person has another id, and with it perhaps another member: one move would
        # change two members.
        raise InvalidInput(
            f"members={members} under 'replace' with persons is not available: an exchange could "
            "change two members; use 'add_remove', under which it counts as two moves"
        )
    classes = _required_class_count(data)
    scheme = make_scheme(multiclass, classes)
    split = Split(recipe.seed, members, recipe.batches)
    normaliser(recipe.batch_size, relation, 0, split)  # refuses before anything is read
    prepared = prepare(
        data,
        split,
        relation,
        classes=classes,
        dtype=torch.float64,
        with_keys=True,
        progress=progress,
    )
    rules, scale = data.preprocessing, recipe.scale
    if scale is None and encoder is None and rules is not None:
        norm = rules.typical_norm
        scale = None if norm is None else 1.0 / norm
    inputs = HeadInputs.of(data.record_shape, encoder, offset, classes, scale, recipe.radius)
    size = normaliser(recipe.batch_size, relation, prepared.units, split)
    recipe = replace(recipe, scale=inputs.scale, batch_size=size)
    Schedule.of(recipe, scheme.loss(recipe).curvature)  # raises if there are too many steps
    head = CertifiedHead(
        weights=torch.zeros(scheme.heads, inputs.width, dtype=torch.float64),
        scheme=scheme,
        inputs=inputs,
        recipe=recipe,
        neighbours=relation,
        dataset=data.name,
        run_id="",
        max_distance=cap,
        max_records_per_person=data.max_records_per_person,
        names=data.given_names,
        preprocessing=rules,
    )
    return HeadJob(prepared, scheme, inputs, head, members)


def _required_class_count(data: Dataset) -> int:
    if data.class_count is None:
        raise InvalidInput(
            "classes=None: the set of labels is public and must not be read off the private "
            "records; give their number or their names, for example classes=2"
        )
    return data.class_count


def _warn_if_useless(head: CertifiedHead, blocks: HeadBlocks) -> None:
    """Warn the owner of a head that is no better than the commonest class. NOT private."""
    given, right = [], []
    for window in blocks.windows():
        for start, end, label in window.blocks.tolist():
            columns = window.columns[start * window.width : end * window.width]
            features = np.ascontiguousarray(columns.reshape(window.width, end - start).T)
            own = scores(features, head.weights.numpy(), window.offsets[start:end])
            given.append(head.scheme.certify(own, np.ones_like(own))[0])
            right.append(np.full(end - start, label))
    warn_after_training(
        torch.from_numpy(np.concatenate(given)),
        torch.from_numpy(np.concatenate(right)),
        head.class_names(range(head.classes)),
        network=False,
    )


def _warn_owner(blocks: HeadBlocks, job: HeadJob) -> None:
    """Warn the owner of features or a batch size that make a poor head. NOT private."""
    recipe, unit = job.head.recipe, job.head.neighbours.unit
    if len(blocks.norms):
        window = next(blocks.windows())
        biases = [
            window.columns[end * window.width - (end - start) : end * window.width]
            for start, end, _ in window.blocks.tolist()
        ]
        norm, bias = float(np.median(blocks.norms)), float(np.median(np.concatenate(biases)))
        if norm < 0.2 or bias < BIAS / 4:
            warn(
                f"NOT private: scaled by {recipe.scale:.3g}, the features have a median norm of "
                f"{norm:.2g}{'' if norm < 0.2 else ' after clipping a much larger one'}; heads "
                "learn best at about 1: bring every column to about -1..1 by a public rule "
                "(hf.Preprocessing.ranges, or a schema); if they are, set scale= in the recipe"
            )
    count = job.records.units / (job.members * recipe.batches)
    if not 0.4 <= count / (recipe.batch_size or 1) <= 2.5:
        warn(
            f"NOT private: batch_size={recipe.batch_size}, but there are about {count:,.0f} "
            f"{unit}s per batch and member: certificates hold, but the settings are meant for "
            f"another number of {unit}s; choose a public number that is nearer"
        )
