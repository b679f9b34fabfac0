"""Ways to publish predictions, ours and rivals, each tried on public records.

DP-SGD gives a private model for any number of queries; its guarantee is under add_remove. A student
learns from labels that a teacher released on public points, and may be used without limit.

All of them see the same features and offsets as heads do, and follow one public rule for their
settings. Their noise comes from ordinary generators: they are for comparisons, not for release.
"""

from __future__ import annotations

import copy
import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ..accounting import Budget
from ..arrays import Floats, Integers
from ..certificates import Certificate
from ..errors import HoldfastWarning, InvalidInput
from ..heads.certified import CertifiedHead
from ..heads.recipe import LinearRecipe, noise_per_sensitivity
from ..mechanisms.sparse_vector import MIN_DELTA
from ..networks.recipe import Recipe
from ..networks.training import train
from .outcomes import (
    approximate_accuracy,
    expected_outcomes,
    expected_sparse_vector_outcome,
    make_stable,
)
from .trials import HeadArrays, Stage


@dataclass(frozen=True)
class DpSgdSettings:
    """The settings of DP-SGD.

    `clip` bounds the norm of each record's gradient; `batch` is the expected size of a Poisson
    sample.
    """

    epochs: int
    batch: int
    learning_rate: float
    clip: float
    momentum: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def train_dpsgd(
    model: nn.Module, x: Tensor, y: Tensor, settings: DpSgdSettings, budget: Budget, seed: int
) -> tuple[nn.Module, float]:
    """Return a trained copy of the model, and the epsilon spent according to Opacus.

    That epsilon is at most the budget's. The noise comes from torch's generator, so the model is
    for experiments, not for release.
    """
    rounds = _batches_per_epoch(settings, len(x))
    trained, engine = _train(
        model,
        x,
        y,
        settings,
        settings.batch,
        _noise(budget, 1 / rounds, settings.epochs * rounds),
        seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spent = float(engine.get_epsilon(budget.delta))
    if not spent <= budget.epsilon:
        raise InvalidInput(
            f"Opacus spent epsilon={spent!r}, more than the budget's {budget.epsilon!r}: its "
            "search for a noise scale failed"
        )
    return trained, spent


def rehearse_dpsgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: DpSgdSettings,
    budget: Budget,
    seed: int,
    records: int,
) -> nn.Module:
    """Train on few public records as noisily as `train_dpsgd` would on `records` private ones.

    The batch, and the noise of its sum, are reduced by the same factor as the data, so that every
    step is as noisy. The result is not private, and no budget is spent.
    """
    share = len(x) / records
    rounds = _batches_per_epoch(settings, records)
    noise = _noise(budget, 1 / rounds, settings.epochs * rounds) * share
    return _train(model, x, y, settings, max(1, round(settings.batch * share)), noise, seed)[0]


def _batches_per_epoch(settings: DpSgdSettings, records: int) -> int:
    """Return the number of batches per epoch."""
    return -(-records // min(settings.batch, records))


def _train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: DpSgdSettings,
    batch: int,
    noise: float,
    seed: int,
) -> tuple[nn.Module, Any]:
    try:
        from opacus import PrivacyEngine
    except ImportError as error:
        raise InvalidInput(
            "DP-SGD needs the package opacus: pip install 'holdfast[dpsgd]'"
        ) from error
    with warnings.catch_warnings(), torch.random.fork_rng():
        # Opacus warns of an insecure generator, of hooks without gradients, and of an order at the
        # end of its range.
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        module = copy.deepcopy(model).train()
        engine = PrivacyEngine()
        module, optimiser, loss, batches = engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(
                module.parameters(), settings.learning_rate, momentum=settings.momentum
            ),
            criterion=nn.BCEWithLogitsLoss() if _outputs(model) == 1 else nn.CrossEntropyLoss(),
            data_loader=DataLoader(TensorDataset(x, y), batch_size=min(batch, len(x))),
            noise_multiplier=noise,
            max_grad_norm=settings.clip,
            grad_sample_mode="ghost",
        )
        for _ in range(settings.epochs):
            for features, labels in batches:
                optimiser.zero_grad()
                loss(*_per_record_loss_inputs(module(features), labels)).backward()
                optimiser.step()
    trained = copy.deepcopy(model)
    trained.load_state_dict(module._module.state_dict())
    return trained.eval(), engine


@lru_cache(maxsize=64)
def _noise(budget: Budget, sample_rate: float, steps: int) -> float:
    """Return the noise multiplier that spends the budget; the search takes Opacus seconds."""
    from opacus.accountants.utils import get_noise_multiplier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        noise = get_noise_multiplier(
            target_epsilon=budget.epsilon,
            target_delta=budget.delta,
            sample_rate=sample_rate,
            steps=steps,
            accountant="prv",
        )
    return float(noise)


def predict(model: nn.Module, x: Tensor) -> Tensor:
    """Return a torch model's labels: 1 if its only logit is above 0, or the largest of several."""
    with torch.no_grad():
        logits: Tensor = model(x)
    return (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)


def _per_record_loss_inputs(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Shape logits and labels so that there is one loss per record.

    Opacus multiplies the losses by clipping factors of shape (records,); with a column of losses
    the product would be broadcast to a square.
    """
    return (logits[:, 0], labels.to(logits.dtype)) if logits.shape[1] == 1 else (logits, labels)


def _outputs(model: nn.Module) -> int:
    return int(
        [module for module in model.modules() if isinstance(module, nn.Linear)][-1].out_features
    )


def student_accuracy(x: Tensor, released: Tensor, query_x: Tensor, query_y: Tensor) -> float:
    """Return the accuracy of a logistic regression that was fitted to the released labels.

    If only one label was released, the student always answers with it.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    answers = released.numpy()
    if len(np.unique(answers)) == 1:
        return float((query_y == int(answers[0])).double().mean())
    student = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    student.fit(x.flatten(1).numpy(), answers)
    return float((student.predict(query_x.flatten(1).numpy()) == query_y.numpy()).mean())


_STEPS = 200
_EPOCHS, _BATCHES = 20, 10
_FOLDS = 3
_PENALTIES = (1.0, 10.0, 100.0, 1000.0)  # inverse strengths among which cross-validation chooses


@dataclass(frozen=True)
class DescentSettings:
    """The bound on the norm of each record's gradient, and the sum of the step sizes."""

    clip: float
    travel: float


def default_settings(stage: Stage, budget: Budget) -> DescentSettings:
    """Return the clip and travel of `LinearRecipe.for_release`, which suit noisy descent, too."""
    recipe = LinearRecipe.for_release(
        records=stage.records, features=stage.features, classes=stage.classes, budget=budget
    )
    return DescentSettings(recipe.clip, recipe.travel)


def noisy_descent_accuracy(
    stage: Stage, budget: Budget, seed: int, settings: DescentSettings | None = None
) -> float:
    """Return the accuracy of full-batch descent with Gaussian noise in every step.

    The steps together are one Gaussian mechanism, so their noise is exactly calibrated.
    """
    chosen = settings or default_settings(stage, budget)
    clip = chosen.clip
    moved = 2.0 if stage.neighbours == "replace" else 1.0
    noise = moved * clip * noise_per_sensitivity(budget) * math.sqrt(_STEPS) / stage.times
    seen, chance = stage.training, np.random.default_rng(seed)
    norms = np.linalg.norm(seen.features, axis=1, keepdims=True)
    targets = np.eye(stage.classes)[stage.y]
    weights = np.zeros((seen.offsets.shape[1], seen.features.shape[1]))
    for _ in range(_STEPS):
        gradients = _residuals(_logits(seen, weights), targets)
        lengths = np.linalg.norm(gradients, axis=1, keepdims=True) * norms
        gradients *= np.minimum(1.0, clip / np.maximum(lengths, 1e-12))
        total = gradients.T @ seen.features + noise * chance.normal(size=weights.shape)
        weights -= chosen.travel / _STEPS / len(stage.y) * total
    return _accuracy(_logits(stage.queries, weights), stage)


def _logits(seen: HeadArrays, weights: Floats) -> Floats:
    return np.asarray(seen.features @ weights.T + seen.offsets)


def _residuals(logits: Floats, targets: Floats) -> Floats:
    """Return the derivative of the cross-entropy by the logits: one for two classes."""
    if logits.shape[1] == 1:
        return 1.0 / (1.0 + np.exp(-np.clip(logits, -500.0, 500.0))) - targets[:, 1:]
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True) - targets)


def _accuracy(logits: Floats, stage: Stage) -> float:
    labels = (logits[:, 0] > 0.0) if logits.shape[1] == 1 else logits.argmax(1)
    return float(np.mean(labels == stage.query_y))


class _OffsetLinear(nn.Module):
    """A linear layer from 0; the last columns of its input are added to its outputs."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, outputs, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.linear.out_features
        logits: Tensor = self.linear(x[:, :-outputs]) + x[:, -outputs:]
        return logits


def dpsgd_accuracy(
    stage: Stage, budget: Budget, seed: int, settings: DescentSettings | None = None
) -> float:
    """Return the accuracy of a linear model that DP-SGD (Opacus) trained."""
    chosen = settings or default_settings(stage, budget)
    batch = max(1, stage.records // _BATCHES)
    rate = chosen.travel / (_EPOCHS * _BATCHES)
    sgd = DpSgdSettings(_EPOCHS, batch, rate, chosen.clip)
    seen = stage.training
    model = _OffsetLinear(seen.features.shape[1], seen.offsets.shape[1])
    trained = rehearse_dpsgd(
        model, _joined(seen), torch.from_numpy(stage.y), sgd, budget, seed, stage.records
    )
    labels = predict(trained, _joined(stage.queries))
    return float((labels == stage.right).double().mean())


def _joined(seen: HeadArrays) -> Tensor:
    return torch.from_numpy(np.hstack([seen.features, seen.offsets])).float()


def public_labels_accuracy(stage: Stage) -> float | None:
    """Return the accuracy of a logistic regression on the public labels; None if there are none."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    if stage.public is None:
        return None
    x, y = stage.public
    search = GridSearchCV(LogisticRegression(max_iter=2000), {"C": list(_PENALTIES)}, cv=_FOLDS)
    search.fit(_columns(stage.arrays(x)), y)
    return float(search.score(_columns(stage.queries), stage.query_y))


def _columns(seen: HeadArrays) -> Floats:
    return np.hstack([seen.features, seen.offsets])


CLOSED_FORM, RUN = "closed form", "run"
_MEMBERS = 10
_BOX_REACH = 150
_BOX_RATE, _BOX_CLIP = 3.0, 0.3
_DRAWS = 20


@dataclass(frozen=True)
class Way(ABC):
    """One way to publish predictions.

    Args:
        seeds: How often a rival with random training is run.
    """

    seeds: int = 3
    name: ClassVar[str]
    ours: ClassVar[bool] = True
    how: ClassVar[str] = CLOSED_FORM  # whether noise is averaged over exactly, or drawn
    any_queries: ClassVar[bool] = False  # whether the number of queries does not matter
    command: ClassVar[str] = ""

    @abstractmethod
    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float | None:
        """Return the expected accuracy; None if the way cannot be taken."""

    def final_records(self, stage: Stage) -> int:
        """Return how many records the way learns from in the end."""
        return stage.records


def _recipe(stage: Stage, budget: Budget, queries: int, members: int = 1) -> LinearRecipe:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HoldfastWarning)  # a plan shows hopeless budgets too
        return LinearRecipe.for_budget(
            records=max(1, stage.records // members),
            features=stage.features,
            classes=stage.classes,
            budget=budget,
            queries=queries,
            neighbours=stage.neighbours,
        )


def _answered(stage: Stage, found: Certificate, budget: Budget, queries: int) -> float:
    if budget.delta > 0.0:
        return approximate_accuracy(found, stage.query_y, budget, queries)
    return expected_outcomes(make_stable)(found, stage.right, budget, queries).accuracy


class HeadAnswers(Way):
    """Answers one by one, from one head."""

    name = "answers from a head"
    command = "holdfast train ... --epsilon {e:g} --delta {d:g} --queries {q}, then `holdfast ask`"

    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float:
        found = stage.certificate(stage.head(_recipe(stage, budget, queries)))
        return _answered(stage, found, budget, queries)


class SparseVectorAnswers(Way):
    """Exact answers to stable queries, from one head, until a number of them were unstable."""

    name = "sparse vector"
    command = "hf.SparseVector(...) with hf.PrivatePredictor, on a head"

    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float | None:
        if budget.delta < MIN_DELTA:
            return None
        found = stage.certificate(stage.head(_recipe(stage, budget, queries)))
        coarse = replace(found, distances=round_down_to_two_digits(found.distances))
        return expected_sparse_vector_outcome(coarse, stage.right, budget, queries).accuracy


def round_down_to_two_digits(distances: Tensor) -> Tensor:
    """Round distances down to two digits, so that few different ones are left."""
    unit = 10.0 ** (distances.clamp(min=1).double().log10().floor() - 1.0).clamp(min=0.0)
    return ((distances / unit).floor() * unit).long()


class EnsembleAnswers(Way):
    """Answers one by one, from the vote of ten heads on disjoint parts of the records."""

    name = "answers from an ensemble"
    command = "holdfast train ... --members 10 --queries {q}, then `holdfast ask`"

    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float | None:
        if len(stage.y) < 10 * _MEMBERS:
            return None
        recipe = _recipe(stage, budget, queries, _MEMBERS)
        found = stage.certificate(stage.head(recipe, members=_MEMBERS))
        return _answered(stage, found, budget, queries)


class BoxAnswers(Way):
    """Answers one by one, from a linear model that was trained for one step with boxes."""

    name = "answers from boxes"
    command = (
        "holdfast train ... --model linear-box --zero-output --epochs 1 --learning-rate 3 --clip "
        "0.3, then `holdfast ask`"
    )

    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float:
        found = stage.once("boxes", lambda: self._certificate(stage))
        return _answered(stage, found, budget, queries)

    def _certificate(self, stage: Stage) -> Certificate:
        reach = max(1, math.ceil(_BOX_REACH / stage.times))
        trained = train(
            self._model(stage),
            stage.x,
            stage.y,
            Recipe(learning_rate=_BOX_RATE, clip=_BOX_CLIP, batch_size=len(stage.y)),
            neighbours=stage.neighbours,
            max_distance=reach,
            ids=range(len(stage.y)),
            progress=False,
        )
        return stage.certificate(trained)

    def _model(self, stage: Stage) -> nn.Module:
        linear = nn.Linear(stage.features, stage.classes)
        nn.init.zeros_(linear.weight), nn.init.zeros_(linear.bias)
        encoder = stage.options.get("encoder")
        if encoder is None:
            return linear
        return nn.Sequential(*encoder.requires_grad_(False), linear)


class HeadRelease(Way):
    """The head itself, released once with noise."""

    name = "release of the head"
    any_queries = True
    command = (
        "holdfast train ... --release --epsilon {e:g} --delta {d:g}, `holdfast budget create NAME "
        "--release --epsilon {e:g} --delta {d:g}`, then `holdfast release`"
    )

    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float | None:
        if budget.delta == 0.0:
            return None
        return stage.once(("release", budget), lambda: self._accuracy(stage, budget))

    def _accuracy(self, stage: Stage, budget: Budget) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HoldfastWarning)
            recipe = LinearRecipe.for_release(
                records=stage.records,
                features=stage.features,
                classes=stage.classes,
                budget=budget,
                neighbours=stage.neighbours,
            )
        head, noise = head_and_noise(stage, recipe, budget)
        return released_accuracy(head, noise, stage.query_x, stage.query_y)


def head_and_noise(
    stage: Stage, recipe: LinearRecipe, budget: Budget
) -> tuple[CertifiedHead, float]:
    """Return a head, and the deviation of the noise that its release adds to each weight."""
    head = stage.head(recipe, "softmax")
    assert isinstance(head, CertifiedHead)
    return head, noise_per_sensitivity(budget) * head.ball.sensitivity / stage.times


def released_accuracy(head: CertifiedHead, noise: float, query_x: Any, query_y: Integers) -> float:
    """Return the expected accuracy of a head with Gaussian noise of this deviation per weight.

    For two classes it is exact: the noise of a score is Gaussian, too. For more it is the mean of
    some draws.
    """
    features, norms, offsets = head.inputs(head.features(query_x), head.scheme)
    weights = head.weights.numpy()
    if head.classes == 2:
        margins = (features @ weights[0] + offsets[:, 0]) * (2 * query_y - 1)
        return float(ndtr(margins / np.maximum(noise * norms, 1e-300)).mean())
    chance = np.random.default_rng(0)
    right = [
        (features @ (weights + noise * chance.normal(size=weights.shape)).T + offsets).argmax(1)
        == query_y
        for _ in range(_DRAWS)
    ]
    return float(np.mean(right))


class _Rival(Way):
    """A way that is run with several seeds, for a budget alone."""

    ours = False
    how = RUN
    any_queries = True

    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float | None:
        if budget.delta == 0.0:
            return None
        return stage.once((self.name, budget), lambda: self._mean(stage, budget))

    def _mean(self, stage: Stage, budget: Budget) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HoldfastWarning)
            return float(np.mean([self._run(stage, budget, seed) for seed in range(self.seeds)]))

    @abstractmethod
    def _run(self, stage: Stage, budget: Budget, seed: int) -> float: ...


class NoisyDescent(_Rival):
    """Full-batch descent with noise in every step, outside holdfast."""

    name = "noisy descent"

    def _run(self, stage: Stage, budget: Budget, seed: int) -> float:
        return noisy_descent_accuracy(stage, budget, seed)


class DpSgd(_Rival):
    """DP-SGD by Opacus, outside holdfast."""

    name = "DP-SGD"

    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float | None:
        if stage.neighbours != "add_remove":  # Opacus counts under add_remove alone
            return None
        return super().accuracy(stage, budget, queries)

    def _run(self, stage: Stage, budget: Budget, seed: int) -> float:
        return dpsgd_accuracy(stage, budget, seed)


class PublicLabels(Way):
    """A model of public labels alone, which needs no budget."""

    name = "public labels alone"
    ours = False
    how = RUN
    any_queries = True

    def accuracy(self, stage: Stage, budget: Budget, queries: int) -> float | None:
        return stage.once(self.name, lambda: public_labels_accuracy(stage))

    def final_records(self, stage: Stage) -> int:
        # In the end it learns from those that ask in a rehearsal, too.
        return len(stage.y) + len(stage.query_y)


WAYS: tuple[type[Way], ...] = (
    HeadAnswers,
    HeadRelease,
    EnsembleAnswers,
    BoxAnswers,
    SparseVectorAnswers,
    NoisyDescent,
    DpSgd,
    PublicLabels,
)
"""All ways; of two that are equally good, a plan recommends the first."""
