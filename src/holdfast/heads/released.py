"""A head whose weights were released with noise; it answers any number of queries."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..accounting import ApproximateGuarantee, Budget, Guarantee, RenyiGuarantee
from ..arrays import check_features, shape_text
from ..checks import escape_markdown
from ..errors import InvalidInput
from ..files import write
from ..preprocessing import Preprocessing
from ..preprocessing.rules import preprocessing_facts
from ..relations import Neighbours
from ..version import __version__
from .certified import check_weights, public_facts, save_trained
from .loops import scores
from .recipe import LinearRecipe
from .schemes import HeadInputs, Scheme

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

KIND = "holdfast released head"


@dataclass(frozen=True)
class ReleaseRecord:
    """How a head was released, in public numbers.

    Args:
        budget: The (epsilon, delta) of this release by itself; None if it took what was left of a
            budget, which is then known only as a Rényi divergence.
        total: The budget of the data set, which covers this release and all other answers.
        order: The Rényi order at which the ledger counts the budget.
        cost: The Rényi divergence of this release at that order.
        noise: The standard deviation of the noise in each weight.
        sensitivity: How far one move can change all weights together, the grid included.
        exponent: The binary exponent of the spacing of the grid: it is 2^-exponent.
        released: The day of the release.
    """

    budget: Budget | None
    total: Budget
    order: float
    cost: float
    noise: float
    sensitivity: float
    exponent: int
    released: str

    def __post_init__(self) -> None:
        numbers = (self.order, self.cost, self.noise, self.sensitivity)
        if (
            not all(isinstance(number, float) and 0.0 < number < math.inf for number in numbers)
            or self.order <= 1.0
            or not isinstance(self.exponent, int)
            or not re.fullmatch(r"\d{4}-\d\d-\d\d", self.released)
            or any(each is not None and each.delta == 0.0 for each in (self.budget, self.total))
        ):
            raise InvalidInput(f"{self}: expected what a release has recorded")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, about: Mapping[str, Any]) -> ReleaseRecord:
        own = about["budget"]
        budgets = {
            "budget": None if own is None else Budget(**own),
            "total": Budget(**about["total"]),
        }
        return cls(**{**about, **budgets})

    @classmethod
    def today(cls) -> str:
        return f"{datetime.now(UTC):%Y-%m-%d}"


@dataclass(frozen=True, eq=False)
class ReleasedHead:
    """An ordinary model with its guarantee attached, as `hf.release_head` returns it.

    It may be published, and used for any number of queries at no further cost.

    Args:
        weights: The weights with noise, float64: (heads, features and bias).
        scheme: How heads tell the classes apart.
        inputs: The public functions of a record that the head sees.
        recipe: The recipe that it was trained with.
        neighbours: The relation that the guarantee holds for.
        dataset: The owner's name for the private data.
        run_id: The random name of the training run.
        release: How much noise was added, and what that promises.
        max_records_per_person: The most records of one person that were used; None: all.
        names: The names of the classes; empty if they have none.
        preprocessing: The public rules that are applied to queries.

    Example:
        >>> import holdfast as hf, torch
        >>> x, y = torch.tensor([[-1.0], [1.0]] * 500), torch.tensor([0, 1] * 500)
        >>> recipe = hf.LinearRecipe(batch_size=1000, travel=10.0)
        >>> head = hf.train_linear(x, y, recipe, classes=2, dataset="w", progress=False)
        >>> ledger = hf.Ledger("sqlite:///released.db", home="keys")
        >>> status = ledger.create_budget("w", hf.Budget(10.0, 1e-6), release=True)
        >>> released = hf.release_head(head, ledger)
        >>> released.predict([[5.0], [-5.0]])
        tensor([1, 0])
    """

    weights: Tensor
    scheme: Scheme
    inputs: HeadInputs
    recipe: LinearRecipe
    neighbours: Neighbours
    dataset: str
    run_id: str
    release: ReleaseRecord
    max_records_per_person: int | None = None
    names: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None

    def __post_init__(self) -> None:
        check_weights(self)
        if not self.weights.isfinite().all():
            raise InvalidInput("weights are not finite: expected what a release has recorded")

    @property
    def classes(self) -> int:
        return self.scheme.classes

    @property
    def guarantee(self) -> Guarantee:
        """What the release costs one record, by itself."""
        release = self.release
        if release.budget is None:
            return RenyiGuarantee(release.order, release.cost, self.neighbours)
        return ApproximateGuarantee(release.budget.epsilon, release.budget.delta, self.neighbours)

    def features(self, queries: Any) -> Tensor:
        """Return queries as the head sees them after preprocessing, one row per query."""
        if self.preprocessing is not None:
            queries = self.preprocessing.apply(queries, "queries")
        features = check_features(queries, torch.float64, "queries")
        if features.shape[1:] != self.inputs.record_shape:
            raise InvalidInput(
                f"queries have shape {tuple(features.shape)}: expected (number of queries, "
                f"{shape_text(self.inputs.record_shape)})"
            )
        return features

    def scores(self, queries: Any) -> Tensor:
        """Return the score of class 1, or of every class if there are more than two.

        Args:
            queries: One row per query, like the x given to training.
        """
        seen, _, offsets = self.inputs(self.features(queries), self.scheme)
        return torch.from_numpy(scores(seen, self.weights.numpy(), offsets))

    def predict(self, queries: Any) -> Tensor:
        """Return the labels, one int64 per query. They cost nothing.

        Args:
            queries: One row per query, like the x given to training.
        """
        return self.predict_proba(queries).argmax(1)

    def predict_proba(self, queries: Any) -> Tensor:
        """Return a number per query and class; the numbers of a query add up to 1.

        They rank queries well but are only roughly calibrated: training clips gradients and stops
        early, so they are closer to 1/2 than the frequencies are (docs/reproduction.md).

        Args:
            queries: One row per query, like the x given to training.
        """
        found = self.scores(queries)
        if self.classes == 2:
            found = torch.cat([torch.zeros_like(found), found], 1)
        return found.softmax(1)

    def class_names(self, labels: Iterable[int]) -> list[str]:
        """Return the public names of labels, or their numbers if they have no names."""
        names = self.names if self.preprocessing is None else self.preprocessing.classes
        names = names or self.names
        return [names[label] if names else str(label) for label in labels]

    def to_sklearn(self) -> Pipeline:
        """Return a fitted scikit-learn pipeline with the same labels and probabilities.

        Its last step is a `LogisticRegression` that holds the released weights.
        """
        from .exported import sklearn_pipeline

        return sklearn_pipeline(self)

    def to_torch(self) -> nn.Module:
        """Return a torch module from records to logits: one for two classes, else one per class.

        It takes records as `features` returns them, that is, after preprocessing.
        """
        from .exported import HeadModule

        return HeadModule(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Save the released head; `hf.load` reads it back. The file is not private.

        Args:
            path: Where to write the file.
        """
        tensors: dict[str, Tensor] = {}
        header = {
            **save_trained(self, "", tensors),
            "release": self.release.as_json(),
            "preprocessing": None
            if self.preprocessing is None
            else self.preprocessing.save_to(tensors),
        }
        write(Path(path), KIND, header, tensors)

    def statement(self) -> str:
        """Return the privacy statement of this release, in Markdown."""
        release = self.release
        promise = (
            f"(ε, δ) = {release.budget}-differential privacy of the released weights"
            if release.budget is not None
            else f"Rényi divergence of order {release.order:g} at most {_at_most(release.cost)}, "
            f"within the data set's budget (ε, δ) = {release.total}"
        )
        rows = {
            "promise": promise,
            "covers": "any number of predictions, by anyone, and everything computed from the "
            "weights without the records",
            "together with all other answers and releases": f"(ε, δ) = {release.total} of "
            f"{escape_markdown(self.dataset)}, as long as that budget is not raised",
            "unit": f"one {self.neighbours.unit}: `{self.neighbours.value}`, that is, "
            f"{self.neighbours.move}",
            "noise": f"discrete Gaussian, standard deviation {release.noise:.6g} per weight; one "
            f"move changes all weights by at most {_at_most(release.sensitivity)}",
            "weights": f"{self.weights.numel():,} numbers on a grid of 2^{-release.exponent}",
            "normaliser": f"{self.recipe.batch_size} (a public number of {self.neighbours.unit}s "
            "that each step divides by)",
            "released": f"{release.released}, training run `{self.run_id}`",
        }
        recipe = ", ".join(f"{name}={value!r}" for name, value in self.recipe.as_dict().items())
        facts = [f"recipe: {recipe}", *public_facts(self), f"number of classes: {self.classes}"]
        facts += preprocessing_facts(self.preprocessing)
        return "\n".join(
            [
                f"# Privacy statement: a head of {escape_markdown(self.dataset)}",
                f"\nholdfast {__version__}\n",
                "| | |",
                "|---|---|",
                *(f"| {name} | {text} |" for name, text in rows.items()),
                "\n## Declared public\n",
                "The promise does not cover these: they must not have been fitted on the private "
                "records.\n",
                *(f"- {escape_markdown(fact)}" for fact in facts),
                "\n## Not protected\n",
                "- what the population reveals about a person: the head may be right about people "
                "whose records it never saw",
                "- a choice of this head, or of its settings, by its accuracy on private records",
                "- the trained head without noise, its certificates and its simulated accuracy",
                "- answers and releases outside this ledger, or under another name for the same "
                "data: their budgets add up",
                *(
                    f"- {line}"
                    for line in (ABOUT_PERSONS if self.neighbours.unit == "person" else ())
                ),
                "",
            ]
        )


ABOUT_PERSONS = (
    "a person who is in the data under several ids, each of which counts as a person; and each of "
    "several persons who share an id, which counts as one person",
    "a person's records among the public data",
)
"""What a statement per person says that the promise does not cover."""


def _at_most(bound: float) -> str:
    """Return an upper bound in few digits, rounded up."""
    return f"{bound * (1.0 + 1e-5):.6g}"
