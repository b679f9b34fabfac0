"""CertifiedHead: trained linear heads with the ball of weights that each move can reach."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from ..certificates import Certificate
from ..errors import InvalidInput
from ..kernels import require_ieee
from ..models import CertifiedMember, EnsemblePart, save_front, surplus_facts
from ..preprocessing import Preprocessing
from ..relations import Neighbours
from .ball import FARTHEST, OFFSET_LIMIT, Ball, make_ball
from .loops import scores
from .recipe import LinearRecipe
from .schemes import HeadInputs, Scheme


@dataclass(frozen=True, eq=False)
class CertifiedHead(CertifiedMember):
    """Linear heads whose weights stay in a ball, as `hf.train_linear` returns them.

    NOT private: releasing answers requires a mechanism.

    Args:
        weights: The weights, float64: (heads, features and bias).
        scheme: How heads tell the classes apart.
        inputs: The public functions of a record that the heads see.
        recipe: The recipe, with `batch_size` and `scale` filled in.
        neighbours: The relation that the ball holds for.
        dataset: The owner's name for the private data.
        run_id: The random name of the training run, which identifies the model in the ledger.
        max_distance: The largest distance that a certificate states; None: no cap.
        max_records_per_person: The most records of one person that were used; None: all.
        names: The names of the classes; empty if they have none.
        preprocessing: The public rules that are applied to queries.
        part: The part of the records that it was trained on, in an ensemble; None: all records.
        signature: The signature of the file that it was loaded from, by the key of a ledger.

    Example:
        >>> import holdfast as hf, torch
        >>> x, y = torch.tensor([[-1.0], [1.0]] * 50), torch.tensor([0, 1] * 50)
        >>> recipe = hf.LinearRecipe(batch_size=100, travel=10.0)
        >>> head = hf.train_linear(x, y, recipe, classes=2, progress=False)
        >>> head.certify([[1.0]]).labels
        tensor([1])
        >>> head.radius(2) == 2 * head.radius(1)
        True
    """

    is_network: ClassVar[bool] = False

    weights: Tensor
    scheme: Scheme
    inputs: HeadInputs
    recipe: LinearRecipe
    neighbours: Neighbours
    dataset: str
    run_id: str
    max_distance: int | None = None
    max_records_per_person: int | None = None
    names: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None
    part: EnsemblePart | None = None
    signature: str | None = None

    dtype = torch.float64

    def __post_init__(self) -> None:
        check_weights(self)

    @property
    def record_shape(self) -> tuple[int, ...]:
        return self.inputs.record_shape

    @property
    def classes(self) -> int:
        return self.scheme.classes

    @property
    def distances(self) -> range:
        """The distances above 0 that a query can have."""
        return range(1, (FARTHEST if self.max_distance is None else self.max_distance) + 1)

    @cached_property
    def ball(self) -> Ball:
        """How far one move can take the weights of a head: public numbers alone."""
        return make_ball(
            self.recipe,
            self.scheme.loss(self.recipe),
            self.neighbours,
            batch_size=self.scheme.batch_size(self.recipe),
            width=self.inputs.width,
            offset_limit=0.0 if self.inputs.offset is None else OFFSET_LIMIT,
        )

    def radius(self, k: int) -> float:
        """Return how far k moves can take the weights of each head, in Euclidean norm.

        With `multiclass="softmax"` it is the norm of all heads together.

        Args:
            k: The number of moves.
        """
        return k * self.ball.sensitivity

    def predict(self, queries: Any) -> Tensor:
        """Return the plain labels, one int64 per query. NOT private."""
        return self.certify_member(self.features(queries)).labels

    def scores(self, queries: Any) -> Tensor:
        """Return the plain score of every head, as (queries, heads). NOT private.

        For two classes, a score is the log-odds of class 1, as far as the head has learned it.

        Args:
            queries: One row per query, like the x given to training.
        """
        features, _, offsets = self.inputs(self.features(queries), self.scheme)
        return torch.from_numpy(scores(features, self.weights.numpy(), offsets))

    def certify_member(self, features: Tensor) -> Certificate:
        require_ieee()
        seen, norms, offsets = self.inputs(features, self.scheme)
        found = scores(seen, self.weights.numpy(), offsets)
        if self.ball.terms == 1:
            moves = self.ball.move(norms[:, None], np.abs(offsets))
        else:
            moves = self.ball.move(norms, np.abs(offsets).max(1))[:, None]
        labels, distances = self.scheme.certify(found, moves)
        farthest = self.distances[-1]
        return Certificate(
            torch.from_numpy(labels),
            torch.from_numpy(np.minimum(distances, farthest)),
            self.neighbours,
            self.classes,
            reach=farthest,
        )

    def certify_member_constant_work(self, features: Tensor) -> Certificate:
        # Every query takes the same operations, whatever its scores are.
        return self.certify_member(features)

    def public_facts(self) -> list[str]:
        return public_facts(self)

    def save_to(self, name_prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        return {
            **save_trained(self, name_prefix, tensors),
            "max_distance": self.max_distance,
            "part": None if self.part is None else self.part.as_dict(),
        }


class TrainedHead(Protocol):
    """What is saved of any head, certified or released."""

    @property
    def weights(self) -> Tensor: ...
    @property
    def scheme(self) -> Scheme: ...
    @property
    def inputs(self) -> HeadInputs: ...
    @property
    def recipe(self) -> LinearRecipe: ...
    @property
    def neighbours(self) -> Neighbours: ...
    @property
    def dataset(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def max_records_per_person(self) -> int | None: ...
    @property
    def names(self) -> tuple[str, ...]: ...


def check_weights(head: TrainedHead) -> None:
    """Raise InvalidInput unless the weights fit the head; the compiled loops do not check that."""
    wanted = (head.scheme.heads, head.inputs.width)
    if tuple(head.weights.shape) != wanted or head.weights.dtype != torch.float64:
        raise InvalidInput(
            f"weights are {head.weights.dtype} {tuple(head.weights.shape)}: expected float64 "
            f"{wanted}"
        )


def public_facts(head: TrainedHead) -> list[str]:
    """Return, for privacy statements, what the promise of a head takes as public."""
    facts = [f"a linear head with {head.inputs.width} weights, {head.scheme.name}, from 0"]
    if head.inputs.encoder is not None:
        facts.append("the frozen encoder in front")
    if head.inputs.offset is not None:
        facts.append("the offset: a public model whose logits are added")
    if head.names:
        facts.append(f"the set of labels: {', '.join(head.names)}")
    return facts + surplus_facts(head.max_records_per_person)


def save_trained(head: TrainedHead, name_prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the header of what every head has, and add its tensors to `tensors`."""
    tensors[f"{name_prefix}weights"] = head.weights
    fronts = {
        name: None if front is None else save_front(front, f"{name_prefix}{name}/", tensors)
        for name, front in (("encoder", head.inputs.encoder), ("offset", head.inputs.offset))
    }
    return {
        **fronts,
        "scheme": head.scheme.name,
        "classes": head.scheme.classes,
        "names": head.names,
        "recipe": head.recipe.as_dict(),
        "neighbours": head.neighbours.value,
        "max_records_per_person": head.max_records_per_person,
        "dataset": head.dataset,
        "record_shape": head.inputs.record_shape,
        "run_id": head.run_id,
    }
