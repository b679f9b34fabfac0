"""The certificate: labels and the distances up to which they are stable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor

from ..errors import InvalidInput
from ..relations import Neighbours


@dataclass(frozen=True, eq=False)
class Certificate:
    """A label per query and the distance up to which it is stable.

    NOT private: both depend on the private records.

    Args:
        labels: The labels, one int64 per query.
        distances: The stable distances, one int64 per query; 0 if a query is not certified at all.
        neighbours: The relation that the distances hold for.
        classes: The number of classes.
        nested: Whether P1 and P2 below hold.
        votes: The votes of an ensemble: (queries, classes).
        reach: The largest distance that a query could have, which is public; None if it is unknown.

    Raises:
        InvalidInput: If shapes, types or ranges do not fit.

    Guarantees:
        For nested certificates under all relations but REMOVE (docs/theory/nesting.md, persons.md):
        P1: between neighbouring data sets, the distance of a query changes by at most 1.
        P2: if either distance is at least 1, both data sets give the query the same label.

    Example:
        >>> import holdfast as hf, torch
        >>> labels, distances = torch.tensor([1, 0]), torch.tensor([7, 2])
        >>> certificate = hf.Certificate(labels, distances, "add_remove", 2)
        >>> certificate.share(5)
        0.5
    """

    labels: Tensor  # int64
    distances: Tensor  # int64; 0: not certified at any distance
    neighbours: Neighbours
    classes: int
    _: KW_ONLY
    nested: bool = True
    votes: Tensor | None = None  # only for ensembles: (queries, classes)
    reach: int | None = None  # the largest possible distance (public); None: unknown

    def __post_init__(self) -> None:
        object.__setattr__(self, "neighbours", Neighbours.of(self.neighbours))
        for name in ("labels", "distances"):
            value = getattr(self, name)
            if not isinstance(value, Tensor):
                raise InvalidInput(f"{name} is a {type(value).__name__}: expected an int64 tensor")
            if value.dtype != torch.int64 or value.dim() != 1:
                raise InvalidInput(
                    f"{name} is {value.dtype} {tuple(value.shape)}: expected one int64 per query"
                )
        if self.labels.shape != self.distances.shape:
            raise InvalidInput(
                f"{len(self.labels)} labels and {len(self.distances)} distances: "
                "expected as many labels as distances"
            )
        if len(self.labels) and (
            int(self.labels.min()) < 0
            or int(self.labels.max()) >= self.classes
            or int(self.distances.min()) < 0
        ):
            raise InvalidInput(
                f"labels must lie in 0..{self.classes - 1} and distances must not be negative"
            )
        if self.votes is not None and (
            self.votes.dtype != torch.int64 or self.votes.shape != (len(self.labels), self.classes)
        ):
            raise InvalidInput(
                f"votes are {self.votes.dtype} {tuple(self.votes.shape)}: expected int64, one "
                "row per query and one column per class"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> Certificate:
        """Return the certificate of one query."""
        rows = slice(row, row + 1)
        votes = None if self.votes is None else self.votes[rows]
        return replace(self, labels=self.labels[rows], distances=self.distances[rows], votes=votes)

    @staticmethod
    def joined(parts: Sequence[Certificate]) -> Certificate:
        """Return one certificate for the queries of several, by the same model without votes."""
        labels = torch.cat([part.labels for part in parts])
        return replace(parts[0], labels=labels, distances=torch.cat([p.distances for p in parts]))

    def share(self, distance: int) -> float:
        """Return the share of queries that are certified at a distance. NOT private.

        Args:
            distance: The distance, or the rank on a sparse grid.

        Raises:
            InvalidInput: If there are no queries.
        """
        if not len(self):
            raise InvalidInput("the certificate has no queries: there is no share to compute")
        return float((self.distances >= distance).double().mean())
