"""Training of linear heads: `train_linear`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ..certificates.usefulness import warn_after_training
from ..checks import check_integer, check_new_name
from ..engines import check_engine, open_engine
from ..errors import InvalidInput, warn
from ..heads import LinearRecipe
from ..heads.ball import Schedule
from ..heads.descent import descend
from ..heads.head_inputs import BIAS, HeadInputs
from ..heads.multiclass import Scheme, make_scheme
from ..kernels.heads import scores
from ..preprocessing import Preprocessing
from ..records import PARTS_MEMORY, ParquetRecords, relation_for
from ..relations import Neighbours
from ..training import Estimate
from ..workers import progress_bar
from .ensemble import CertifiedEnsemble
from .head_arguments import (
    class_count_and_names,
    default_batch_size,
    distance_cap,
    head_relation,
    refuse_exchanges_between_members,
)
from .head_records import PreparedRecords, Reading, Sample
from .interface import EnsemblePart
from .linear import CertifiedHead
from .saved import saved_size

_TRIAL_TRAVEL = 5.0  # of the run from which time is estimated


def train_linear(
    x: Any,
    y: Any,
    recipe: LinearRecipe,
    *,
    classes: int | Sequence[Any] | None = None,
    neighbours: Neighbours | str = "add_remove",
    max_distance: int | None = None,
    members: int = 1,
    multiclass: str = "pairs",
    encoder: nn.Module | None = None,
    offset: nn.Module | None = None,
    preprocessing: Preprocessing | None = None,
    ids: Iterable[Any] | None = None,
    persons: Iterable[Any] | None = None,
    max_records_per_person: int | None = None,
    engine: str = "local",
    dataset: str = "default",
    progress: bool = True,
) -> CertifiedHead | CertifiedEnsemble:
    """Train a linear head on public features, with certificates for every distance.

    The loss is convex, so k moves change the weights by at most k times a number that is known
    before training, whatever the records are and however many steps are taken. Distances have no
    cap, and certifying a query takes one product.

    Args:
        x: The private features, one row per record: a tensor, an array, or a table if
            `preprocessing` names columns; or `hf.ParquetRecords`, which may be larger than memory.
        y: The labels, one per record: numbers from 0 on, or names if `classes` are names; None for
            `hf.ParquetRecords`.
        recipe: How to train. All of it is public.
        classes: The number of classes, or their names in order. They are public and never read off
            y. None is allowed if the preprocessing names them.
        neighbours: The neighbour relation: "add_remove" or "replace".
        max_distance: The largest distance that a certificate states; None: no cap.
        members: The number of heads, trained on disjoint parts of the records, that vote. The
            recipe's batch size is that of each member.
        multiclass: "pairs", one head per pair of classes; "one_vs_rest" (which "pairs" means for
            more than 30 classes); or "softmax", which suits a release of the weights.
        encoder: A public torch module from records to features; it is frozen. None: the records are
            the features.
        offset: A public torch module from records to logits, which are added to the head's scores.
        preprocessing: Public rules that compute the features of x and of every query.
        ids: One unique integer or string per record. Without it, the id of a record is a hash of
            its content.
        persons: The owner of each record, an integer or a string: privacy is then per person, and
            the recipe's batch size is a public number of persons. A person's records share a batch
            and a member, and their gradients are averaged.
        max_records_per_person: The most records of one person that are used; a hash of the records
            chooses them. None: all of them.
        engine: Where the work runs: "local" or "ray", as for `train`.
        dataset: The owner's name for the private data; a budget in the ledger belongs to it.
        progress: Whether to show a progress bar.

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
    members, engine = check_integer("members", members, 1), check_engine(engine)
    in_files = isinstance(x, ParquetRecords)
    relation = relation_for(
        neighbours,
        x.id if in_files else ids,
        x.person if in_files else persons,
        max_records_per_person,
    )
    relation = head_relation(relation)
    refuse_exchanges_between_members(relation, members)
    job = _prepare(
        x,
        y,
        recipe,
        classes=classes,
        relation=relation,
        max_distance=distance_cap(max_distance),
        members=members,
        multiclass=multiclass,
        modules=(encoder, offset),
        preprocessing=preprocessing,
        ids=ids,
        persons=(persons, max_records_per_person),
        dataset=check_new_name("dataset", dataset),
        progress=progress,
    )
    return job.train(progress, engine)


def estimate_linear_training(
    x: Any, y: Any, recipe: LinearRecipe, *, members: int = 1, **settings: Any
) -> Estimate:
    """Estimate the time, memory and file size of `train_linear`.

    A few steps are run on all records. The arguments are those of `train_linear`.

    Returns:
        About how much the whole run takes. NOT private.
    """
    trial = replace(recipe, travel=_TRIAL_TRAVEL)
    settings |= {"members": members, "progress": False}
    for name in ("ids", "persons"):  # which are read twice
        if isinstance(settings.get(name), Iterator):
            settings[name] = list(settings[name])
    train_linear(x, y, trial, **settings)  # compiles the loops
    started = time.monotonic()
    trained = train_linear(x, y, trial, **settings)
    seconds = time.monotonic() - started
    first = trained.members[0]
    assert isinstance(first, CertifiedHead)
    bend = first.scheme.loss(recipe).curvature
    steps = [Schedule.of(each, bend).count for each in (recipe, trial)]
    # Numbers about each record, and its features, unless they are on disk.
    on_disk = isinstance(x, ParquetRecords)
    held = 3 * 8 * (x.count * 16 if on_disk else len(y) * first.inputs.width)
    held += PARTS_MEMORY if on_disk else 0
    return Estimate(seconds * steps[0] / steps[1], held, saved_size(trained))


@dataclass(frozen=True, eq=False)
class _Job:
    """Everything that training needs, checked."""

    records: PreparedRecords
    recipe: LinearRecipe
    scheme: Scheme
    inputs: HeadInputs
    head: CertifiedHead  # with weights of 0
    members: int

    def train(self, progress: bool, engine: str) -> CertifiedHead | CertifiedEnsemble:
        with progress_bar("encoder", self.records.count, progress and self._slow) as watch:
            encoded = self.records.encoded(self.inputs, self.scheme, watch)
        _warn_owner(encoded.sample, self)
        trained = []
        schedule = Schedule.of(self.recipe, self.scheme.loss(self.recipe).curvature)
        work, call = schedule.count * self.members, secrets.token_hex(16)
        with open_engine(engine) as opened, progress_bar("training", work, progress) as watch:
            for member in range(self.members):
                records = encoded.arranged(member, self.recipe.batches)
                weights = descend(self.recipe, self.scheme, records, watch, opened)
                part = EnsemblePart(self.recipe.seed, self.members, member, call)
                trained.append(
                    replace(
                        self.head,
                        weights=torch.from_numpy(weights),
                        run_id=secrets.token_hex(16),
                        part=None if self.members == 1 else part,
                    )
                )
        if self.members == 1:
            _warn_if_useless(trained[0], encoded.sample)
            return trained[0]
        rules = self.head.preprocessing
        return CertifiedEnsemble(
            tuple(replace(head, preprocessing=None) for head in trained), rules
        )

    @property
    def _slow(self) -> bool:
        return self.inputs.encoder is not None and self.inputs.encoder.has_user_layers


def _prepare(
    x: Any,
    y: Any,
    recipe: LinearRecipe,
    *,
    classes: int | Sequence[Any] | None,
    relation: Neighbours,
    max_distance: int | None,
    members: int,
    multiclass: str,
    modules: tuple[Any, Any],
    preprocessing: Preprocessing | None,
    ids: Iterable[Any] | None,
    persons: tuple[Iterable[Any] | None, int | None],
    dataset: str,
    progress: bool,
) -> _Job:
    if not isinstance(recipe, LinearRecipe):
        raise InvalidInput(f"recipe is a {type(recipe).__name__}: expected an hf.LinearRecipe")
    if not isinstance(preprocessing, Preprocessing | None):
        raise InvalidInput(
            f"preprocessing is a {type(preprocessing).__name__}: expected an hf.Preprocessing"
        )
    number, names = class_count_and_names(classes, preprocessing)
    scheme = make_scheme(multiclass, number)
    reading = Reading(recipe, relation, members, preprocessing, number, names, ids, persons)
    records: PreparedRecords = (
        reading.on_disk(x, y, progress)
        if isinstance(x, ParquetRecords)
        else reading.in_memory(x, y)
    )
    scale = recipe.scale
    if scale is None and modules[0] is None and preprocessing is not None:
        norm = preprocessing.typical_norm
        scale = None if norm is None else 1.0 / norm
    inputs = HeadInputs.of(records.record_shape, *modules, number, scale, recipe.radius)
    size = recipe.batch_size or default_batch_size(recipe, relation, records.owners, members)
    recipe = replace(recipe, scale=inputs.scale, batch_size=size)
    Schedule.of(recipe, scheme.loss(recipe).curvature)  # raises if there are too many steps
    head = CertifiedHead(
        weights=torch.zeros(scheme.heads, inputs.width, dtype=torch.float64),
        scheme=scheme,
        inputs=inputs,
        recipe=recipe,
        neighbours=relation,
        dataset=dataset,
        run_id="",
        max_distance=max_distance,
        max_records_per_person=persons[1],
        names=names,
        preprocessing=preprocessing,
    )
    return _Job(records, recipe, scheme, inputs, head, members)


def _warn_if_useless(head: CertifiedHead, sample: Sample) -> None:
    """Warn the owner of a head that is no better than the commonest class. NOT private."""
    found = scores(sample.features, head.weights.numpy(), sample.offsets)
    given, _ = head.scheme.certify(found, np.ones_like(found))
    warn_after_training(
        torch.from_numpy(given),
        sample.labels,
        head.class_names(range(head.classes)),
        network=False,
    )


def _warn_owner(sample: Sample, job: _Job) -> None:
    """Warn the owner of features or a batch size that make a poor head. NOT private."""
    norm, bias = float(np.median(sample.norms)), float(np.median(sample.features[:, -1]))
    if norm < 0.2 or bias < BIAS / 4:
        warn(
            f"NOT private: scaled by {job.recipe.scale:.3g}, the features have a median norm of "
            f"{norm:.2g}{'' if norm < 0.2 else ' after clipping a much larger one'}; heads learn "
            "best at about 1: bring every column to about -1..1 by a public rule "
            "(hf.Preprocessing.ranges, or a schema); if they are, set scale= in the recipe"
        )
    count = job.records.owners / (job.members * job.recipe.batches)
    unit = job.head.neighbours.unit
    if not 0.4 <= count / (job.recipe.batch_size or 1) <= 2.5:
        warn(
            f"NOT private: batch_size={job.recipe.batch_size}, but there are about {count:,.0f} "
            f"{unit}s per batch and member: certificates hold, but the settings are meant for "
            f"another number of {unit}s; choose a public number that is nearer"
        )
