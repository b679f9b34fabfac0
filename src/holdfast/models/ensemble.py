"""Ensembles of certified models that are trained on disjoint parts of the records and vote."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from typing import Any

import torch
from torch import Tensor

from ..certificates import Certificate, certify_vote, count_votes, winners
from ..errors import InvalidInput
from ..heads import LinearRecipe
from ..preprocessing import Preprocessing
from ..relations import Neighbours
from ..training.recipe import Recipe
from .interface import CertifiedMember, CertifiedModel


@dataclass(frozen=True, eq=False)
class CertifiedEnsemble(CertifiedModel):
    """An ensemble of certified members that vote; ties go to the larger label.

    NOT private: releasing answers requires a mechanism.
    """

    members: tuple[CertifiedMember, ...]
    preprocessing: Preprocessing | None = None
    signature: str | None = None  # of the file that it was loaded from, by the key of a ledger
    from_file: InitVar[bool] = False  # whether the members are those of one file, as it was saved

    def __post_init__(self, from_file: bool) -> None:
        kinds = {
            (member.dataset, member.neighbours, member.classes, member.record_shape)
            for member in self.members
        }
        if len(kinds) != 1 or len({id(member) for member in self.members}) != len(self.members):
            raise InvalidInput(
                "members: expected different models of one data set, "
                "relation and shape, as train_ensemble makes them"
            )
        if any(member.preprocessing is not None for member in self.members):
            raise InvalidInput(
                "members: expected models without preprocessing; "
                "give it to the ensemble, which applies it once"
            )
        self._refuse_other_splits(from_file)
        if any(member.recipe != self.members[0].recipe for member in self.members):
            raise InvalidInput("members: expected the same recipe for all of them")

    def _refuse_other_splits(self, from_file: bool) -> None:
        """Raise InvalidInput unless the members are the parts of one split, by one training call.

        Members of older versions have no token of their call; they are accepted from one file.
        """
        parts = {member.part for member in self.members if member.part is not None}
        splits = {(part.seed, part.count, part.call) for part in parts}
        indices = {part.index for part in parts}
        if (
            len(splits) != 1
            or indices != set(range(len(self.members)))
            or splits.pop()[1] != len(self.members)
        ):
            raise InvalidInput(
                f"members: {len(self.members)} models whose records are not the parts of one "
                "split, made by one call; the distance of a vote holds only if no two members "
                "share a record; train them with train_ensemble"
            )
        if not from_file and any(not part.call for part in parts):
            raise InvalidInput(
                "members: models of an older version, which do not tell whether one call trained "
                "them; load the ensemble from its file, or train it again with train_ensemble"
            )

    @property
    def classes(self) -> int:
        return self.members[0].classes

    @property
    def neighbours(self) -> Neighbours:
        return self.members[0].neighbours

    @property
    def distances(self) -> Sequence[int]:
        """The distances above 0 that each member was run at."""
        return self.members[0].distances

    @property
    def recipe(self) -> Recipe | LinearRecipe:
        """The recipe of every member."""
        return self.members[0].recipe

    @property
    def dataset(self) -> str:
        return self.members[0].dataset

    @property
    def run_id(self) -> str:
        """The identifier of the training run: a hash of the random identifiers of the members."""
        return hashlib.sha256(
            "".join(member.run_id for member in self.members).encode()
        ).hexdigest()[:32]

    def combine(self, certificates: list[Certificate]) -> Certificate:
        return certify_vote(certificates)

    def predict(self, queries: Any) -> Tensor:
        """Return the plain labels, one int64 per query. NOT private."""
        return winners(self.votes(queries))

    def votes(self, queries: Any) -> Tensor:
        """Return the number of votes for each class, as (queries, classes). NOT private."""
        features = self.features(queries)
        return count_votes(
            torch.stack([member.predict(features) for member in self.members], 1), self.classes
        )
