"""LinearRecipe: how a linear head is trained, in public numbers that are fixed beforehand."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..checks import as_float_or_nan, check_integer
from ..errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class LinearRecipe:
    """How to train a linear head: public numbers that are fixed beforehand.

    Small steps cost time and no distance, so the number of steps is not chosen: it is the smallest
    one whose steps satisfy the condition under which a step never drives two heads apart.

    Args:
        batch_size: The normaliser: about how many records a batch has, a public number. Any number
            of records is sound; a guess within a factor of 2 is accurate. None is allowed only
            under "replace", where the number of records is public.
        travel: The sum of the step sizes. More travel fits better; distances fall in proportion.
        clip: The bound on the norm of each record's gradient, at most `radius`.
        radius: Features are scaled to a norm of about 1 and clipped to this norm.
        growth: The limit of the smooth normaliser: a batch never counts for more than `growth`
            times batch_size records, however many it has.
        weight_decay: The weight decay.
        batches: The number of batches; 1 is the full batch.
        seed: The key of the hash that assigns records to batches and members.
        scale: The number by which features are multiplied. None: one divided by the root mean
            square norm of the features, as far as the public rules tell it.

    Raises:
        InvalidInput: If a number is out of range; the message names it.

    Example:
        >>> import holdfast as hf
        >>> recipe = hf.LinearRecipe(batch_size=25_000, travel=1000.0, clip=0.6)
        >>> recipe.radius
        1.2
    """

    batch_size: int | None = None
    travel: float = 100.0
    clip: float = 0.6
    radius: float = 1.2
    growth: float = 8.0
    weight_decay: float = 0.0
    batches: int = 1
    seed: int = 0
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            self._set("batch_size", check_integer("batch_size", self.batch_size, 1))
        self._set("batches", check_integer("batches", self.batches, 1))
        self._set("seed", check_integer("seed", self.seed, 0))
        for name in ("travel", "clip", "radius", "growth", "weight_decay"):
            self._set(name, _number(name, getattr(self, name), zero=name == "weight_decay"))
        if self.scale is not None:
            self._set("scale", _number("scale", self.scale))
        if self.clip > self.radius:
            raise InvalidInput(
                f"clip={self.clip!r}: expected at most radius={self.radius!r}, "
                "since no gradient is longer than that"
            )
        if self.growth < 1.0:
            raise InvalidInput(f"growth={self.growth!r}: expected at least 1; try growth=8.0")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        """Return all settings as a dictionary."""
        return asdict(self)


def _number(name: str, value: Any, zero: bool = False) -> float:
    number = as_float_or_nan(value)
    if not (0.0 <= number if zero else 0.0 < number) or not number < 1e100:
        expected = "a finite number, at least 0" if zero else "a finite positive number"
        raise InvalidInput(f"{name}={value!r}: expected {expected}")
    return number
