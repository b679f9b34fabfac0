"""Heads of the paper's tasks, and the stages on which they are tried."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.accounting import Budget
from holdfast.certificates import Certificate
from holdfast.errors import HoldfastWarning
from holdfast.examples.demo import Task
from holdfast.heads.recipe import LinearRecipe
from holdfast.heads.training import train_linear
from holdfast.mechanisms import AnswerMechanism
from holdfast.planning.planner import Trial, rehearse_on
from holdfast.planning.trials import Stage
from holdfast.planning.ways import Way
from holdfast.preprocessing import Preprocessing
from holdfast.relations import Neighbours

from .bench import Bench
from .cells import FOLDS, Evaluation, Store, mechanisms_digest, rehearsal
from .run import Run


def way_cells(
    run: Run,
    bench: Bench,
    kind: str,
    way: Way,
    budget: Budget,
    queries: Sequence[int],
    rehearsals: Sequence[Trial],
) -> list[dict[str, Any]]:
    """Return what a way reaches, or is planned to reach, per number of queries."""

    def compute() -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        found = {}
        for count in queries:
            each = [one.accuracy(way, budget, count) for one in rehearsals]
            known = [accuracy for accuracy in each if accuracy is not None]
            found[str(count)] = statistics.fmean(known) if len(known) == len(each) else None
        return found, {}

    config = {
        "cell": f"way, {kind}",
        "task": bench.task.digest,
        "start": bench.public_start,
        "way": way.name,
        "seeds": way.seeds,
        "budget": [budget.epsilon, budget.delta],
        "queries": list(queries),
        "mechanisms": mechanisms_digest(),
    }
    title = f"{bench.task.name}, {way.name}, {budget}, {kind}"
    figures = run.store.cell(title, config, compute).figures
    about = {"epsilon": budget.epsilon, "way": way.name, "ours": way.ours, "how": way.how}
    return [{**about, "queries": count, "accuracy": figures[str(count)]} for count in queries]


def _features(bench: Bench, x: torch.Tensor) -> torch.Tensor:
    """Return records as the ways see them: whitened, if no pre-trained layers do that."""
    rules = _whitening(bench)
    return x if rules is None else rules.apply(x)


def _whitening(bench: Bench) -> Preprocessing | None:
    if bench.pretrained is not None:
        return None
    return Preprocessing.whitening(bench.task.public_x, shrinkage=SHRINKAGE, limit=LIMIT)


def _options(bench: Bench) -> tuple[dict[str, Any], float | None]:
    """Return the public modules of heads, and the public scale of their features."""
    rules = _whitening(bench)
    if rules is not None:
        return {}, None if rules.typical_norm is None else 1.0 / rules.typical_norm
    encoder, scale = whitened_encoder(bench, bench.task.public_x, SHRINKAGE)
    return {"encoder": encoder, "offset": bench.pretrained}, scale


def private_stage(bench: Bench, asked: tuple[torch.Tensor, torch.Tensor] | None = None) -> Stage:
    """Return the private records, and the test queries or those given with their right answers."""
    task = bench.task
    options, scale = _options(bench)
    query_x, query_y = (task.query_x, task.query_y) if asked is None else asked
    x, queries, public = (_features(bench, x) for x in (task.x, query_x, task.tune_x))
    return Stage(
        x,
        task.y.numpy(),
        queries,
        query_y.numpy(),
        (public, task.tune_y.numpy()),
        bench.records,
        2,
        "add_remove",
        options,
        scale,
    )


def public_rehearsals(bench: Bench) -> Iterable[Trial]:
    options, scale = _options(bench)
    x, y = _features(bench, bench.task.tune_x), bench.task.tune_y.numpy()
    return rehearse_on(x, y, bench.records, 2, "add_remove", options, scale)


SHRINKAGE = 0.3  # the default of `hf.Preprocessing.whitening`
LIMIT = 3.0
_TRAVELS = (1.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 8000.0)


@dataclass(frozen=True)
class HeadSetting:
    """One way to train a head on features that are whitened with public records."""

    recipe: LinearRecipe
    shrinkage: float

    def as_dict(self) -> dict[str, Any]:
        return {"recipe": self.recipe.as_dict(), "shrinkage": self.shrinkage}

    def describe(self) -> str:
        """Return the setting in words, for figures and reports."""
        recipe = self.recipe
        return f"travel {recipe.travel:g}, clip {recipe.clip:g}, whitening {self.shrinkage:g}"


def candidates(bench: Bench) -> list[HeadSetting]:
    """Return the settings among which public labels decide."""
    return [
        HeadSetting(LinearRecipe(batch_size=bench.records, travel=travel, clip=clip), shrinkage)
        for shrinkage, clip, travel in product((SHRINKAGE, 1.0), (0.3, 0.6), _TRAVELS)
    ]


def default_setting(bench: Bench, budget: Budget, queries: int) -> HeadSetting:
    """Return the setting that public numbers alone suggest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HoldfastWarning)  # the figure shows hopeless budgets too
        recipe = LinearRecipe.for_budget(
            records=bench.records,
            features=_width(bench),
            classes=2,
            budget=budget,
            queries=queries,
        )
    return HeadSetting(recipe, SHRINKAGE)


def _width(bench: Bench) -> int:
    return int(bench.task.x[0].numel() if bench.pretrained is None else _hidden(bench).out_features)


def _hidden(bench: Bench) -> nn.Linear:
    assert isinstance(bench.pretrained, nn.Sequential)
    assert isinstance(bench.pretrained[0], nn.Linear)
    return bench.pretrained[0]


def head_certificate(
    store: Store, bench: Bench, setting: HeadSetting, task: Task | None = None
) -> Evaluation:
    """Return the certificates of a task's queries by a head.

    If the bench has pre-trained layers, the head sees their hidden features, and their logits are
    its offset.
    """
    used = bench.task if task is None else task

    def compute() -> tuple[dict[str, Any], dict[str, Tensor]]:
        found = _train(bench, used, setting).certify(used.query_x)
        return {}, {"labels": found.labels, "distances": found.distances}

    config = {
        "cell": "head",
        "task": used.digest,
        "setting": setting.as_dict(),
        "start": bench.public_start,
    }
    cell = store.cell(f"{used.name}, head, {setting.describe()}", config, compute).tensors
    certificate = Certificate(cell["labels"], cell["distances"], Neighbours.ADD_REMOVE, 2)
    return Evaluation(certificate, used.query_y, certificate)


def _train(bench: Bench, task: Task, setting: HeadSetting) -> Any:
    settings: dict[str, Any] = {"classes": 2, "dataset": task.name, "progress": False}
    if bench.pretrained is None:
        rules = Preprocessing.whitening(task.public_x, shrinkage=setting.shrinkage, limit=LIMIT)
        return train_linear(task.x, task.y, setting.recipe, preprocessing=rules, **settings)
    encoder, scale = whitened_encoder(bench, task.public_x, setting.shrinkage)
    recipe = replace(setting.recipe, scale=scale)
    return train_linear(
        task.x, task.y, recipe, encoder=encoder, offset=bench.pretrained, **settings
    )


def whitened_encoder(
    bench: Bench, public_x: Tensor, shrinkage: float
) -> tuple[nn.Sequential, float]:
    """Return the pre-trained hidden layer followed by whitening, and the features' public scale."""
    front = nn.Sequential(_hidden(bench), nn.ReLU())
    with torch.no_grad():
        hidden = front(public_x)
        rules = Preprocessing.whitening(hidden, shrinkage=shrinkage, limit=1e9).whitener
        assert rules is not None
        assert rules.norm is not None
        layer = nn.Linear(hidden.shape[1], hidden.shape[1])
        layer.weight.copy_(rules.matrix.T)
        layer.bias.copy_(-(rules.mean @ rules.matrix))
    return nn.Sequential(*front, layer), 1.0 / rules.norm


def choose_head(
    store: Store, bench: Bench, settings: Sequence[HeadSetting], mechanism: AnswerMechanism
) -> HeadSetting:
    """Return the first setting whose answers by the mechanism are best in rehearsal.

    Heads are trained and judged on public records with labels; distances are scaled to the number
    of private records, which is public.
    """
    scores = [
        sum(_score(store, bench, setting, mechanism, fold) for fold in range(FOLDS))
        for setting in settings
    ]
    return settings[scores.index(max(scores))]


def _score(
    store: Store, bench: Bench, setting: HeadSetting, mechanism: AnswerMechanism, fold: int
) -> float:
    task = rehearsal(bench.task, fold)
    times = bench.records / len(task.y)
    small = replace(setting, recipe=replace(setting.recipe, batch_size=len(task.y)))
    found = head_certificate(store, bench, small, task)
    farther = (found.certificate.distances.double() * times).long()
    return replace(found, certificate=replace(found.certificate, distances=farther)).expected(
        mechanism
    )
