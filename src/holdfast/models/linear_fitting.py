"""Training of linear heads: `train_linear`."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..checks import check_integer, check_name
from ..errors import HoldfastWarning, InvalidInput
from ..heads import LinearRecipe
from ..heads.ball import FARTHEST, Schedule
from ..heads.descent import HeadRecords, descend
from ..heads.head_inputs import HeadInputs
from ..heads.multiclass import Floats, Scheme, make_scheme
from ..preprocessing import Preprocessing
from ..progress import progress_bar
from ..records import (
    as_features,
    assign_parts,
    check_features,
    check_labels,
    content_ids,
    given_ids,
    hash_codes,
)
from ..relations import Neighbours
from .ensemble import CertifiedEnsemble
from .interface import EnsemblePart
from .linear import CertifiedHead


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
    dataset: str = "default",
    progress: bool = True,
) -> CertifiedHead | CertifiedEnsemble:
    """Train a linear head on public features, with certificates for every distance.

    The loss is convex, so k moves change the weights by at most k times a number that is known
    before training, whatever the records are and however many steps are taken. Distances have no
    cap, and certifying a query takes one product.

    Args:
        x: The private features, one row per record: a tensor, an array, or a table if
            `preprocessing` names columns.
        y: The labels, one per record: numbers from 0 on, or names if `classes` are names.
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
        dataset: The owner's name for the private data; a budget in the ledger belongs to it.
        progress: Whether to show a progress bar.

    Returns:
        The head or, for several members, an ensemble. It is NOT private.

    Raises:
        InvalidInput: If an argument is not valid; raised before any work.
        UnsupportedModel: If encoder or offset is not a module that maps one record to one row.

    Example:
        >>> import holdfast as hf, torch
        >>> x, y = torch.tensor([[-1.0], [1.0]] * 200), torch.tensor([0, 1] * 200)
        >>> recipe = hf.LinearRecipe(batch_size=400, travel=10.0)
        >>> head = hf.train_linear(x, y, recipe, classes=2, progress=False)
        >>> bool(head.certify([[1.0]]).distances > 100)
        True
    """
    job = _prepare(
        x,
        y,
        recipe,
        classes=classes,
        relation=_relation(neighbours),
        max_distance=_cap(max_distance),
        members=check_integer("members", members, 1),
        multiclass=multiclass,
        modules=(encoder, offset),
        preprocessing=preprocessing,
        ids=ids,
        dataset=check_name("dataset", dataset),
    )
    return job.train(progress)


@dataclass(frozen=True, eq=False)
class _Job:
    """Everything that training needs, checked."""

    records: Tensor
    labels: Tensor
    hashes: Any
    batch: Tensor
    member: Tensor
    recipe: LinearRecipe
    scheme: Scheme
    inputs: HeadInputs
    head: CertifiedHead  # with weights of 0
    members: int

    def train(self, progress: bool) -> CertifiedHead | CertifiedEnsemble:
        with progress_bar("encoder", len(self.records), progress and self._slow) as watch:
            features, norms, offsets = self.inputs(self.records, self.scheme, watch)
        _warn_of_scale(norms, self.recipe)
        trained = []
        schedule = Schedule.of(self.recipe, self.scheme.loss(self.recipe).curvature)
        with progress_bar("training", schedule.count * self.members, progress) as watch:
            for member in range(self.members):
                rows = (self.member == member).numpy()
                records = HeadRecords.arrange(
                    features[rows],
                    norms[rows],
                    offsets[rows],
                    self.labels.numpy()[rows],
                    self.batch.numpy()[rows],
                    self.hashes[rows],
                    self.recipe.batches,
                )
                weights = descend(self.recipe, self.scheme, records, watch)
                part = EnsemblePart(self.recipe.seed, self.members, member)
                trained.append(
                    replace(
                        self.head,
                        weights=torch.from_numpy(weights),
                        run_id=secrets.token_hex(16),
                        part=None if self.members == 1 else part,
                    )
                )
        if self.members == 1:
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
    modules: tuple[nn.Module | None, nn.Module | None],
    preprocessing: Preprocessing | None,
    ids: Iterable[Any] | None,
    dataset: str,
) -> _Job:
    if not isinstance(recipe, LinearRecipe):
        raise InvalidInput(f"recipe is a {type(recipe).__name__}: expected an hf.LinearRecipe")
    if not isinstance(preprocessing, Preprocessing | None):
        raise InvalidInput(
            f"preprocessing is a {type(preprocessing).__name__}: expected an hf.Preprocessing"
        )
    count, names = _class_names(classes, preprocessing)
    scheme = make_scheme(multiclass, count)
    x = as_features(x) if preprocessing is None else preprocessing.apply_private(x)
    if not x.numel():
        raise InvalidInput(f"x has shape {tuple(x.shape)}: there is nothing to train on")
    records = check_features(x, torch.float64)
    labels = _labels(y, len(records), count, names)
    scale = recipe.scale
    if scale is None and modules[0] is None and preprocessing is not None:
        norm = preprocessing.typical_norm
        scale = None if norm is None else 1.0 / norm
    inputs = HeadInputs.of(tuple(records.shape[1:]), *modules, count, scale, recipe.radius)
    size = recipe.batch_size or _batch_size(recipe, relation, len(records), members)
    recipe = replace(recipe, scale=inputs.scale, batch_size=size)
    Schedule.of(recipe, scheme.loss(recipe).curvature)  # raises if there are too many steps
    codes = _codes(records, labels, ids, recipe, relation, members)
    head = CertifiedHead(
        weights=torch.zeros(scheme.heads, inputs.width, dtype=torch.float64),
        scheme=scheme,
        inputs=inputs,
        recipe=recipe,
        neighbours=relation,
        dataset=dataset,
        run_id="",
        max_distance=max_distance,
        names=names,
        preprocessing=preprocessing,
    )
    return _Job(
        records,
        labels,
        hash_codes(codes, recipe.seed),
        assign_parts(codes, recipe.batches, recipe.seed, b"batch"),
        assign_parts(codes, members, recipe.seed, b"member"),
        recipe,
        scheme,
        inputs,
        head,
        members,
    )


def _relation(neighbours: Neighbours | str) -> Neighbours:
    relation = Neighbours.of(neighbours)
    if relation is Neighbours.REMOVE:
        raise InvalidInput(
            "neighbours='remove': a head is certified under 'add_remove', whose distances hold for "
            "removals too, or under 'replace'"
        )
    return relation


def _cap(max_distance: int | None) -> int | None:
    if max_distance is None:
        return None
    cap = check_integer("max_distance", max_distance, 1)
    if cap > FARTHEST:
        raise InvalidInput(f"max_distance={cap}: expected at most {FARTHEST:,}, or None")
    return cap


def _class_names(
    classes: int | Sequence[Any] | None, rules: Preprocessing | None
) -> tuple[int, tuple[str, ...]]:
    """Return the number of classes and the names that the caller gave them, if any."""
    declared = () if rules is None else rules.classes
    if classes is None:
        if not declared:
            raise InvalidInput(
                "classes=None: the set of labels is public and must not be read off the private "
                "records; give their number or their names, for example classes=2"
            )
        return len(declared), ()
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        count, names = check_integer("classes", classes, 2), ()
    else:
        names = tuple(str(name) for name in classes)
        count = len(names)
        if count < 2 or len(set(names)) != count:
            raise InvalidInput(f"classes={list(names)}: expected at least 2 classes, each once")
    if declared and (count != len(declared) or (names and names != declared)):
        raise InvalidInput(
            f"classes={classes!r}, but the schema names {list(declared)}: expected the same"
        )
    return count, names


def _labels(y: Any, rows: int, count: int, names: tuple[str, ...]) -> Tensor:
    if not names:
        return check_labels(y, rows, count)
    places = {name: number for number, name in enumerate(names)}
    values = y.tolist() if isinstance(y, Tensor | np.ndarray) else list(y)
    unknown = next((row for row, value in enumerate(values) if str(value) not in places), None)
    if unknown is not None:
        raise InvalidInput(
            f"y[{unknown}] = {values[unknown]!r}: expected one of the classes {list(names)}"
        )
    return check_labels(torch.tensor([places[str(value)] for value in values]), rows, count)


def _batch_size(recipe: LinearRecipe, relation: Neighbours, records: int, members: int) -> int:
    if relation is not Neighbours.REPLACE:
        raise InvalidInput(
            "batch_size=None: under 'add_remove' the number of records is private, so the "
            "normaliser must be a public number; give about how many records you expect, "
            "for example batch_size=1000"
        )
    return max(1, -(-records // (recipe.batches * members)))


def _codes(
    records: Tensor,
    labels: Tensor,
    ids: Iterable[Any] | None,
    recipe: LinearRecipe,
    relation: Neighbours,
    members: int,
) -> list[bytes]:
    if ids is not None:
        return given_ids(ids, len(labels))
    if relation is Neighbours.REPLACE and (members > 1 or recipe.batches > 1):
        raise InvalidInput(
            f"members={members}, batches={recipe.batches} under 'replace' needs ids: an exchanged "
            "record keeps its id, and with it its member and batch; pass ids=, or use 'add_remove'"
        )
    return content_ids(records, labels)


def _warn_of_scale(norms: Floats, recipe: LinearRecipe) -> None:
    """Warn the owner if features are far from a norm of 1. NOT private."""
    middle = float(np.median(norms))
    if not 0.2 <= middle < 0.999 * recipe.radius:
        warnings.warn(
            f"NOT private: the median norm of the scaled features is {middle:.2g}, with a radius "
            f"of {recipe.radius:g}; heads learn best from features with a norm of about 1: set "
            "scale= in the recipe to a public number, or whiten with public rows",
            HoldfastWarning,
            stacklevel=4,
        )
