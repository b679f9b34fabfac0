"""DP-SGD by Opacus as a baseline, and students that learn from released labels.

DP-SGD gives a private model for any number of queries; its guarantee is under add_remove. A student
learns from labels that a teacher released on public points, and may be used without limit.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ..accounting import Budget
from ..errors import InvalidInput


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
