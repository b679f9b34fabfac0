"""What training returns: the interface of certified models, and a single one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..certificates import Certificate, certify_one
from ..certificates import certify as certify_queries
from ..errors import InvalidInput
from ..layers import Network
from ..ledger import Ledger
from ..preprocessing import Preprocessing
from ..records import check_features
from ..relations import Neighbours
from ..training.bounds import ParameterBounds, nominal_parameters
from ..training.diagnosis import Diagnosis
from ..training.diagnosis import diagnose as diagnose_growth
from ..training.loop import Growth, diagnosed_distance
from ..training.preparation import shape_text
from ..training.recipe import Recipe
from .saved import save


@dataclass(frozen=True)
class EnsemblePart:
    """The part of the records that a member of an ensemble was trained on.

    It is number `index` of the `count` parts into which a hash with `seed` splits the records.
    """

    seed: int
    count: int
    index: int


class CertifiedModel(ABC):
    """What training returns: one model, or the members of an ensemble that vote.

    Plain labels, certificates and everything else here are NOT private: private answers come from a
    mechanism, or from `hf.PrivatePredictor`.
    """

    if TYPE_CHECKING:  # fields of one class and properties of the other

        @property
        def members(self) -> tuple[Certified, ...]:
            """The models that were trained: all members of an ensemble, or this model alone."""

        @property
        def recipe(self) -> Recipe: ...
        @property
        def neighbours(self) -> Neighbours: ...
        @property
        def distances(self) -> tuple[int, ...]: ...
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
            queries: One row per query, like the x given to `train`.
        """

    def certify(self, queries: Any) -> Certificate:
        """Return the label of each query and the distance up to which it is stable. NOT private.

        If all distances 1..K were run, the distance of a single model's certificate is k itself; on
        a sparse grid it is the rank, that is, the number of grid points that are certified. The
        certificate of an ensemble also holds the votes.

        Args:
            queries: One row per query, like the x given to `train`.

        Raises:
            InvalidInput: If the queries do not have the shape of a record.
        """
        return self.certify_features(self.features(queries))

    def certify_members(self, queries: Any) -> list[Certificate]:
        """Return the certificate of each member. NOT private.

        Args:
            queries: One row per query, like the x given to `train`.
        """
        features = self.features(queries)
        return [member.certify_alone(features) for member in self.members]

    def features(self, queries: Any) -> Tensor:
        """Return the queries as the members see them, after preprocessing.

        Queries with equal features count as the same query.
        """
        if self.preprocessing is not None:
            queries = self.preprocessing.apply(queries, "queries")
        first = self.members[0]
        features = check_features(queries, first.network.dtype, "queries")
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
        """Return the schema's names of labels, or their numbers if there is no schema."""
        names = () if self.preprocessing is None else self.preprocessing.classes
        return [names[label] if names else str(label) for label in labels]

    def save(self, path: str | PathLike[str], *, ledger: Ledger | None = None) -> None:
        """Save everything that serving needs.

        Leading frozen layers of types that holdfast does not write are left out and must be passed
        to `load` again.

        Args:
            path: Where to write the file, which is as private as the records.
            ledger: The ledger whose key signs the file, so that predictors detect changes.
        """
        save(self, Path(path), ledger)


@dataclass(frozen=True, eq=False)
class Certified(CertifiedModel):
    """A trained model with a box of parameters per distance, as `hf.train` returns it.

    NOT private: releasing answers requires a mechanism.

    Args:
        network: The model, split into frozen and bounded layers.
        recipe: The recipe, with `batch_size` filled in.
        neighbours: The relation that the boxes hold for.
        ladder: The boxes, with distance 0 first.
        dataset: The owner's name for the private data.
        record_shape: The shape of one record.
        growth: What each step did to the box of one distance, for `diagnose`.
        run_id: The random name of the training run, which identifies the model in the ledger.
        preprocessing: The public rules that are applied to queries.
        public_records: The number of public records in every batch.
        part: The part of the records that it was trained on, in an ensemble; None: all records.
        signature: The signature of the file that it was loaded from, by the key of a ledger.

    Example:
        >>> import holdfast as hf, torch
        >>> x, y = torch.tensor([[-1.0], [1.0]] * 50), torch.tensor([0, 1] * 50)
        >>> recipe = hf.Recipe(clip=0.5, batch_size=100)
        >>> model = torch.nn.Linear(1, 2)
        >>> certified = hf.train(model, x, y, recipe, max_distance=3, progress=False)
        >>> certified.certify([[1.0]]).distances
        tensor([3])
        >>> certified.bounds(2).contains(certified.model.state_dict())
        True
    """

    network: Network
    recipe: Recipe
    neighbours: Neighbours
    ladder: tuple[ParameterBounds, ...]  # distance 0 first
    dataset: str
    record_shape: tuple[int, ...]
    growth: tuple[Growth, ...]
    run_id: str  # random, drawn when training begins; identifies the model in the ledger
    preprocessing: Preprocessing | None = None
    public_records: int = 0  # number of public records in every batch
    part: EnsemblePart | None = None  # the part of an ensemble's records; None: all records
    signature: str | None = None  # of the file that it was loaded from, by the key of a ledger

    @property
    def members(self) -> tuple[Certified, ...]:
        return (self,)

    def combine(self, certificates: list[Certificate]) -> Certificate:
        return certificates[0]

    @property
    def distances(self) -> tuple[int, ...]:
        """The distances above 0 that were run."""
        return tuple(bounds.distance for bounds in self.ladder[1:])

    @property
    def classes(self) -> int:
        return self.recipe.loss_function.classes(self.network.outputs)

    @cached_property
    def model(self) -> nn.Module:
        """The nominal model, as a torch module in evaluation mode."""
        return self.network.module(nominal_parameters(self.ladder[0]))

    def bounds(self, k: int) -> ParameterBounds:
        """Return the box of distance k.

        Args:
            k: 0, for the nominal model alone, or a distance that was run.

        Returns:
            The bounds, with `lower[name]`, `upper[name]` and `contains(state_dict)`.

        Raises:
            InvalidInput: If the distance was not run.
        """
        for bounds in self.ladder:
            if bounds.distance == k:
                return bounds
        raise InvalidInput(
            f"k={k!r}: expected 0 or one of the distances that were run: "
            f"{_abbreviated(self.distances)}"
        )

    def predict(self, queries: Any) -> Tensor:
        """Return the plain labels, one int64 per query. NOT private."""
        return certify_queries(
            self.network, self.ladder[:1], self.network.front(self.features(queries))
        )[0]

    def certify_alone(self, features: Tensor) -> Certificate:
        """Return this model's certificate of queries that are given as `features` returns them."""
        labels, ranks = certify_queries(self.network, self.ladder, self.network.front(features))
        return Certificate(labels, ranks, self.neighbours, self.classes, reach=len(self.ladder) - 1)

    def certify_alone_one_by_one(self, features: Tensor) -> Certificate:
        """Return the same as `certify_alone`, with work independent of the outcome."""
        found = [
            certify_one(self.network, self.ladder, query[None])
            for query in self.network.front(features)
        ]
        labels = torch.tensor([label for label, _ in found], dtype=torch.int64)
        ranks = torch.tensor([rank for _, rank in found], dtype=torch.int64)
        return Certificate(labels, ranks, self.neighbours, self.classes, reach=len(self.ladder) - 1)

    def diagnose(self) -> Diagnosis:
        """Return where the box of the middle distance grew fastest and what to change.

        NOT private.
        """
        start, end = self.network.parameters, nominal_parameters(self.ladder[0])
        travelled = {name: float((end[name] - start[name]).abs().double().mean()) for name in end}
        return diagnose_growth(
            self.growth, self.recipe, travelled, diagnosed_distance(self.distances)
        )


def _abbreviated(distances: tuple[int, ...]) -> str:
    return (
        ", ".join(map(str, distances))
        if len(distances) < 12
        else f"{distances[0]}, {distances[1]}, ..., {distances[-1]}"
    )
