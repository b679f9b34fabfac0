"""The tasks as stages: all ways to publish predictions see the same features and offset."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from holdfast.accounting import Budget
from holdfast.planning.rehearsal import Rehearsal, rehearse_on
from holdfast.planning.stage import Stage
from holdfast.planning.ways import Way
from holdfast.preprocessing import Preprocessing

from .bench import Bench
from .cells import mechanisms_digest
from .heads import LIMIT, SHRINKAGE, whitened_encoder
from .run import Run


def way_cells(
    run: Run,
    bench: Bench,
    kind: str,
    way: Way,
    budget: Budget,
    queries: Sequence[int],
    rehearsals: Sequence[Rehearsal],
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


def public_rehearsals(bench: Bench) -> Iterable[Rehearsal]:
    options, scale = _options(bench)
    x, y = _features(bench, bench.task.tune_x), bench.task.tune_y.numpy()
    return rehearse_on(x, y, bench.records, 2, "add_remove", options, scale)
