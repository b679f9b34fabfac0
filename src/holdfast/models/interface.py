"""The interface of certified models: single models, boxes or heads, and ensembles of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..arrays import check_features, shape_text
from ..certificates import Certificate
from ..errors import InvalidInput
from ..heads import LinearRecipe
from ..ledger import Ledger
from ..preprocessing import Preprocessing
from ..relations import Neighbours
from ..training.recipe import Recipe
from ..workers import progress_bar
from .saved import save

_ROWS_PER_ADVANCE = 500  # queries between two advances of the progress bar


@dataclass(frozen=True)
class EnsemblePart:
    """The part of the records that a member of an ensemble was trained on.

    It is number `index` of the `count` parts into which a hash with `seed` splits the records.
    `call` is a random token of the training call: parts of two calls may share records, because the
    calls may have been given other records or ids. It is empty in files of older versions.
    """

    seed: int
    count: int
    index: int
    call: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a file holds them: an empty token is left out, as it always was."""
        return {name: value for name, value in asdict(self).items() if value != ""}


def surplus_facts(max_records_per_person: int | None) -> list[str]:
    """Return, for privacy statements, how many records of a person are used, if it is limited."""
    if max_records_per_person is None:
        return []
    return [f"at most {max_records_per_person} records per person are used, chosen by a hash"]


class CertifiedModel(ABC):
    """What training returns: one model, or the members of an ensemble that vote.

    Plain labels, certificates and everything else here are NOT private: private answers come from a
    mechanism, or from `hf.PrivatePredictor`.
    """

    if TYPE_CHECKING:  # fields of some classes and properties of others

        @property
        def members(self) -> tuple[CertifiedMember, ...]:
            """The models that were trained: all members of an ensemble, or this model alone."""

        @property
        def recipe(self) -> Recipe | LinearRecipe: ...
        @property
        def neighbours(self) -> Neighbours: ...
        @property
        def distances(self) -> Sequence[int]: ...
        @property
        def classes(self) -> int: ...
        @property
        def dataset(self) -> str: ...
        @property
        def run_id(self) -> str: ...
        @property
        def preprocessing(self) -> Preprocessing | None: ...
        @property
        def signature(self) -> str | None: ...

    @abstractmethod
    def combine(self, certificates: list[Certificate]) -> Certificate:
        """Return the certificate of this model, given that of each member."""

    @abstractmethod
    def predict(self, queries: Any) -> Tensor:
        """Return the plain labels, one int64 per query. NOT private.

        Args:
            queries: One row per query, like the x given to training.
        """

    def certify(self, queries: Any, *, progress: bool = False) -> Certificate:
        """Return the label of each query and the distance up to which it is stable. NOT private.

        If all distances 1..K were run, the distance of a single model's certificate is k itself; on
        a sparse grid it is the rank, that is, the number of grid points that are certified. The
        certificate of an ensemble also holds the votes.

        Args:
            queries: One row per query, like the x given to training.
            progress: Whether to show a progress bar.

        Raises:
            InvalidInput: If the queries do not have the shape of a record.
        """
        return self.combine(self.certify_members(queries, progress=progress))

    def certify_members(self, queries: Any, *, progress: bool = False) -> list[Certificate]:
        """Return the certificate of each member. NOT private.

        Args:
            queries: One row per query, like the x given to training.
            progress: Whether to show a progress bar.
        """
        features, found = self.features(queries), []
        with progress_bar("certifying", len(features) * len(self.members), progress) as watch:
            for member in self.members:
                parts = []
                for rows in torch.split(features, _ROWS_PER_ADVANCE) if watch else [features]:
                    parts.append(member.certify_alone(rows))
                    if watch is not None:
                        watch(len(rows))
                found.append(Certificate.joined(parts))
        return found

    def features(self, queries: Any) -> Tensor:
        """Return the queries as the members see them, after preprocessing.

        Queries with equal features count as the same query.
        """
        if self.preprocessing is not None:
            queries = self.preprocessing.apply(queries, "queries")
        first = self.members[0]
        features = check_features(queries, first.dtype, "queries")
        if features.shape[1:] != first.record_shape:
            raise InvalidInput(
                f"queries have shape {tuple(features.shape)}: expected (number of queries, "
                f"{shape_text(first.record_shape)})"
            )
        return features

    def certify_features(self, features: Tensor) -> Certificate:
        """Return the certificate of queries that are given as `features` returns them."""
        return self.combine([member.certify_alone(features) for member in self.members])

    def certify_one_by_one(self, features: Tensor) -> Certificate:
        """Return the same certificate as `certify_features`, with work independent of the outcome.

        Code that serves answers uses this method.
        """
        return self.combine([member.certify_alone_one_by_one(features) for member in self.members])

    def class_names(self, labels: Iterable[int]) -> list[str]:
        """Return the public names of labels, or their numbers if they have no names."""
        names = self._class_names
        return [names[label] if names else str(label) for label in labels]

    @property
    def is_network(self) -> bool:
        """Whether it was trained with boxes, as networks are; False for linear heads."""
        return isinstance(self.recipe, Recipe)

    @property
    def has_class_names(self) -> bool:
        """Whether the classes have public names."""
        return bool(self._class_names)

    @property
    def _class_names(self) -> tuple[str, ...]:
        names = () if self.preprocessing is None else self.preprocessing.classes
        return names or self.members[0].names

    def save(self, path: str | PathLike[str], *, ledger: Ledger | None = None) -> None:
        """Save everything that serving needs.

        Leading frozen layers, encoders and offsets of types that holdfast does not write are left
        out and must be passed to `load` again.

        Args:
            path: Where to write the file, which is as private as the records.
            ledger: The ledger whose key signs the file, so that predictors detect changes.
        """
        save(self, Path(path), ledger)


class CertifiedMember(CertifiedModel):
    """A single certified model, alone or as a member of an ensemble."""

    if TYPE_CHECKING:

        @property
        def record_shape(self) -> tuple[int, ...]:
            """The shape of one record."""

        @property
        def part(self) -> EnsemblePart | None: ...
        @property
        def dtype(self) -> torch.dtype:
            """The type of records and queries."""

        @property
        def names(self) -> tuple[str, ...]:
            """The public names of the classes; empty if they have none."""

    @property
    def members(self) -> tuple[CertifiedMember, ...]:
        return (self,)

    def combine(self, certificates: list[Certificate]) -> Certificate:
        return certificates[0]

    @abstractmethod
    def certify_alone(self, features: Tensor) -> Certificate:
        """Return this model's certificate of queries that are given as `features` returns them."""

    @abstractmethod
    def certify_alone_one_by_one(self, features: Tensor) -> Certificate:
        """Return the same as `certify_alone`, with work independent of the outcome."""

    @abstractmethod
    def public_facts(self) -> list[str]:
        """Return, for the privacy statement, what the promise takes as public."""

    @abstractmethod
    def save_to(self, name_prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Return the header of this model for a saved file and add its tensors to `tensors`.

        The names of its tensors begin with `name_prefix`.
        """
