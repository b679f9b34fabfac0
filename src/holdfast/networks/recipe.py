"""Recipe: everything that decides which algorithm is certified, public and fixed in advance."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from ..checks import as_float_or_nan, check_integer
from ..errors import InvalidInput
from ..layers.losses import LOSSES, Loss


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train: public numbers that are fixed beforehand.

    Parameters that also exist in torch.optim.SGD have the same meaning here.

    Args:
        epochs: The number of passes over the records.
        learning_rate: The learning rate of the first step.
        decay: The learning rate of step n (from 0) is
            max(learning_rate / (1 + decay * n), min_learning_rate).
        clip: The bound on each entry of each record's gradient.
        batches: The number of batches per epoch; 1 is the full batch.
        batch_size: The normaliser: each step divides the summed gradient of its batch by this
            number, however many records the batch holds. None is allowed only under "replace",
            where the number of records is public.
        momentum: The momentum.
        dampening: The dampening of the momentum.
        nesterov: Whether to use Nesterov momentum.
        min_learning_rate: The smallest learning rate.
        weight_decay: The weight decay.
        loss: "cross_entropy", "binary_cross_entropy" (one logit) or "squared_error" (one-hot
            targets).
        seed: The key of the hash that assigns records to batches and members.

    Raises:
        InvalidInput: If a number is out of range; the message names it.

    Example:
        >>> import holdfast as hf
        >>> hf.Recipe(epochs=4, batches=2, clip=0.06, batch_size=5000).steps
        8
    """

    epochs: int = 1
    learning_rate: float = 1.0
    decay: float = 0.0
    clip: float = 0.05
    batches: int = 1
    batch_size: int | None = None
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    min_learning_rate: float = 0.0
    weight_decay: float = 0.0
    loss: str = "cross_entropy"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batches"):
            self._set(name, check_integer(name, getattr(self, name), 1))
        self._set("seed", check_integer("seed", self.seed, 0))
        if self.batch_size is not None:
            self._set("batch_size", check_integer("batch_size", self.batch_size, 1))
        for name in (
            "learning_rate",
            "decay",
            "clip",
            "min_learning_rate",
            "momentum",
            "dampening",
            "weight_decay",
        ):
            self._set(name, _number(name, getattr(self, name)))
        if self.clip <= 0.0:
            raise InvalidInput(
                f"clip={self.clip!r}: a certificate needs a finite positive clip; try clip=0.05"
            )
        if self.learning_rate == 0.0:
            raise InvalidInput("learning_rate=0.0: expected a positive number")
        if self.dampening > 1.0:
            raise InvalidInput(f"dampening={self.dampening!r}: expected a number from 0 to 1")
        if not isinstance(self.nesterov, bool):
            raise InvalidInput(f"nesterov={self.nesterov!r}: expected True or False")
        if self.nesterov and (self.momentum == 0.0 or self.dampening != 0.0):
            raise InvalidInput(
                "nesterov=True needs momentum > 0 and dampening = 0, as in torch.optim.SGD"
            )
        if not isinstance(self.loss, str) or self.loss not in LOSSES:
            raise InvalidInput(
                f"loss={self.loss!r}: expected one of {', '.join(map(repr, LOSSES))}"
            )
        self._refuse_overshooting_decay()

    def _set(self, name: str, value: float) -> None:
        object.__setattr__(self, name, value)

    def _refuse_overshooting_decay(self) -> None:
        """Raise if one step of weight decay shrinks a weight past 0, which swaps the box's ends."""
        largest = max(self.learning_rate, self.min_learning_rate)
        factor = largest * self.weight_decay * (1.0 + self.momentum if self.nesterov else 1.0)
        if factor > 1.0:
            raise InvalidInput(
                f"learning_rate x weight_decay = {factor:g} (with Nesterov's factor, if any): "
                "expected at most 1; lower weight_decay"
            )

    @property
    def steps(self) -> int:
        return self.epochs * self.batches

    @property
    def loss_function(self) -> Loss:
        return LOSSES[self.loss]

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        return max(self.learning_rate / (1.0 + self.decay * step), self.min_learning_rate)

    def as_dict(self) -> dict[str, object]:
        """Return all fields as they are saved."""
        return asdict(self)


def _number(name: str, value: Any) -> float:
    """Return a finite nonnegative number (numpy's too) as a float, or raise InvalidInput."""
    number = as_float_or_nan(value)
    if not 0.0 <= number < math.inf:
        hint = (
            ": a certificate needs a finite positive clip; try clip=0.05"
            if name == "clip"
            else ": expected a finite number, at least 0"
        )
        raise InvalidInput(f"{name}={value!r}{hint}")
    return number
