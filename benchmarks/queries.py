"""Benchmark of queries: the time per query against evaluating every box, in the same run.

Measures one query at a time, as the predictor certifies it (by bisection, with a fixed number of
boxes), and many queries, as the owner certifies them (by bisection in groups). The baseline
evaluates all K + 1 boxes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import holdfast as hf
from holdfast import certificates as stable
from holdfast.workers import no_grad_no_autocast

WIDTH, HIDDEN, DISTANCE = 384, 100, 100


def train_network(rows: int = 2000) -> hf.Certified:
    """Train a 384-100-1 network whose boxes (every k up to 100) certify at many distances."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (rows,), generator=generator)
    x = torch.randn(rows, WIDTH, generator=generator) + 0.3 * (2 * y[:, None] - 1)
    torch.manual_seed(0)
    model = hf.zero_output(nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)))
    recipe = hf.Recipe(learning_rate=1.0, clip=0.003, batch_size=rows, loss="binary_cross_entropy")
    return hf.train(model, x, y, recipe, max_distance=DISTANCE, progress=False)


def distances_by_scan(certified: hf.Certified, features: Tensor) -> Tensor:
    """Return the stable distances, found by evaluating every box."""
    with no_grad_no_autocast():
        found = [
            stable._common_label_in_box(certified.network, bounds, features)
            for bounds in certified.ladder
        ]
    same = torch.stack([label == found[0] for label in found[1:]]) & (found[0] != stable.NO_LABEL)
    return same.long().cumprod(0).sum(0)


def best_time(work: Callable[[], Tensor], rounds: int) -> tuple[float, Tensor]:
    """Return the shortest time of several rounds, in seconds, and the result."""
    result, shortest = work(), float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        result = work()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queries", type=int, default=16_000)
    options = parser.parse_args()
    certified = train_network()
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(options.queries, WIDTH, generator=generator) * 1.5
    table = Table(title=f"{WIDTH}-{HIDDEN}-1 ReLU, K = {DISTANCE}")
    for column in ("queries", "ours (ms)", "every box (ms)", "ratio"):
        table.add_column(column, justify="right")
    cases: list[tuple[Tensor, Callable[[Tensor], Tensor], int]] = [
        (queries[:1], lambda x: certified.certify_constant_work(x).distances, 10 * options.rounds),
        (queries, lambda x: certified.certify(x).distances, 1),
    ]
    for features, ours, rounds in cases:
        mine, found = best_time(lambda f=features, run=ours: run(f), rounds)  # type: ignore[misc]
        theirs, wanted = best_time(
            lambda f=features: distances_by_scan(certified, f), max(1, rounds // 10)
        )  # type: ignore[misc]
        assert torch.equal(found, wanted)
        table.add_row(
            f"{len(features):,}", f"{1e3 * mine:.2f}", f"{1e3 * theirs:.1f}", f"{mine / theirs:.3f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
