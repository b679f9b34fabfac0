"""Public records and queries that stand in for the private ones.

With fewer records, labels are stable at smaller distances and noise is larger. Both effects depend
on the number of records, so a stage is scaled to the number of private records, which is public:
distances are multiplied, and noise is divided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..arrays import Floats, Integers
from ..certificates import Certificate
from ..heads.certified import CertifiedHead
from ..heads.recipe import LinearRecipe
from ..heads.training import train_linear
from ..models import CertifiedModel

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class HeadArrays:
    """Records as linear models see them: features, and a public offset of every logit."""

    features: Floats
    offsets: Floats


@dataclass(frozen=True, eq=False)
class Stage:
    """Records and queries, and the number of private records that they stand for.

    Args:
        x: The records to train on.
        y: Their labels, as class numbers.
        query_x: The queries.
        query_y: Their right answers.
        public: Records with labels that are public, and may be learned from without a budget.
        records: The number of private records: a public number.
        classes: The number of classes.
        neighbours: The neighbour relation.
        options: `encoder` and `offset`, as for `train_linear`.
        scale: The public scale of the features, as in `LinearRecipe`.
    """

    x: Any
    y: Integers
    query_x: Any
    query_y: Integers
    public: tuple[Any, Integers] | None
    records: int
    classes: int
    neighbours: str
    options: dict[str, Any]
    scale: float | None = None
    _memory: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def times(self) -> float:
        """How many private records each record stands for."""
        return self.records / len(self.y)

    @property
    def features(self) -> int:
        """The number of features that linear models see."""
        return self.reference.inputs.width - 1

    @property
    def right(self) -> Tensor:
        return torch.from_numpy(self.query_y)

    def with_records(self, rows: Integers) -> Stage:
        """Return a stage with some of the records and the same queries."""
        x, y = self.x[rows], self.y[rows]
        public = None if self.public is None else (x, y)
        return replace(self, x=x, y=y, public=public, _memory={})

    def once(self, key: Any, compute: Callable[[], _Found]) -> _Found:
        """Return what `compute` returned when it was first called with this key."""
        if key not in self._memory:
            self._memory[key] = compute()
        found: _Found = self._memory[key]
        return found

    def head(
        self, recipe: LinearRecipe, multiclass: str = "pairs", members: int = 1
    ) -> CertifiedModel:
        """Return a head, or an ensemble of them, with the recipe for the private records."""
        small = replace(recipe, batch_size=max(1, len(self.y) // members), scale=self.scale)

        def compute() -> CertifiedModel:
            return train_linear(
                self.x,
                self.y,
                small,
                classes=self.classes,
                neighbours=self.neighbours,
                multiclass=multiclass,
                members=members,
                ids=range(len(self.y)),
                progress=False,
                **self.options,
            )

        return self.once((small, multiclass, members), compute)

    def certificate(self, model: CertifiedModel) -> Certificate:
        """Return the certificate of the queries, with distances scaled to the private records."""

        def compute() -> Certificate:
            members = [
                replace(found, distances=(found.distances.double() * self.times).long())
                for found in model.certify_members(self.query_x)
            ]
            return model.combine(members)

        return self.once(("certificate", model.run_id), compute)

    @cached_property
    def reference(self) -> CertifiedHead:
        """A head trained for one step, used for its feature map alone."""
        head = self.head(LinearRecipe(batch_size=1, travel=1.0), "softmax")
        assert isinstance(head, CertifiedHead)
        return head

    def arrays(self, records: Any) -> HeadArrays:
        """Return records as linear models see them."""
        head = self.reference
        features, _, offsets = head.inputs(head.features(records), head.scheme)
        return HeadArrays(features, offsets)

    @cached_property
    def training(self) -> HeadArrays:
        return self.arrays(self.x)

    @cached_property
    def queries(self) -> HeadArrays:
        return self.arrays(self.query_x)
