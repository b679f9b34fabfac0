"""Certified: a trained network with a box of parameters per distance."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..certificates import Certificate, certify_one
from ..certificates import certify as certify_queries
from ..errors import InvalidInput
from ..layers import Network
from ..preprocessing import Preprocessing
from ..relations import Neighbours
from ..training.bounds import ParameterBounds, nominal_parameters
from ..training.diagnosis import Diagnosis
from ..training.diagnosis import diagnose as diagnose_growth
from ..training.job import Growth, diagnosed_distance
from ..training.recipe import Recipe
from .interface import CertifiedMember, EnsemblePart, surplus_facts
from .saved import save_network


@dataclass(frozen=True, eq=False)
class Certified(CertifiedMember):
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
        max_records_per_person: The most records of one person that were used; None: all.
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
    max_records_per_person: int | None = None  # public; None: all records of a person are used
    part: EnsemblePart | None = None  # the part of an ensemble's records; None: all records
    signature: str | None = None  # of the file that it was loaded from, by the key of a ledger

    @property
    def dtype(self) -> torch.dtype:
        return self.network.dtype

    @property
    def names(self) -> tuple[str, ...]:
        return ()

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

    def public_facts(self) -> list[str]:
        kinds = ", ".join(type(layer).__name__ for layer in self.network.layers)
        facts = [f"architecture and initial weights: {kinds}"]
        if self.network.front.layers:
            facts.append(f"{len(self.network.front.layers)} frozen layers in front")
        if self.public_records:
            facts.append(f"{self.public_records} public records, in every batch")
        return facts + surplus_facts(self.max_records_per_person)

    def save_to(self, name_prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        for name in self.network.trainable:
            for end in ("lower", "upper"):
                tensors[f"{name_prefix}{end}/{name}"] = torch.stack(
                    [getattr(bounds, end)[name] for bounds in self.ladder]
                )
        return {
            **save_network(self.network, name_prefix, tensors),
            "recipe": self.recipe.as_dict(),
            "neighbours": self.neighbours.value,
            "max_records_per_person": self.max_records_per_person,
            "distances": self.distances,
            "dataset": self.dataset,
            "record_shape": self.record_shape,
            "growth": [asdict(grown) for grown in self.growth],
            "public_records": self.public_records,
            "run_id": self.run_id,
            "part": None if self.part is None else self.part.as_dict(),
        }

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
