"""Stable distances: bisection agrees with a scan over all boxes.

The number of evaluations is the same for every query, so that the time taken reveals nothing.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import holdfast as hf
from holdfast.intervals import Interval
from holdfast.networks import certified as stable
from holdfast.networks.boxes import ParameterBounds


def _model(
    seed: int, outputs: int, distances: list[int], relation: str = "add_remove"
) -> hf.Certified:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, outputs))
    recipe = hf.Recipe(
        epochs=2,
        clip=0.1,
        batch_size=60,
        loss="binary_cross_entropy" if outputs == 1 else "cross_entropy",
    )
    y = torch.randint(0, max(2, outputs), (60,))
    return hf.train(
        model,
        torch.randn(60, 3) + y[:, None],
        y,
        recipe,
        neighbours=relation,
        distances=distances,
        progress=False,
    )


def scan(certified: hf.Certified, features: torch.Tensor) -> tuple[list[int], list[int]]:
    """Return labels and ranks by a slow scan of one box after the other."""
    labels, ranks = [], []
    for query in features:
        label, agreed = (
            int(found)
            for found in stable._nominal(certified.network, certified.ladder[0], query[None])
        )
        rank = 0
        for bounds in certified.ladder[1:]:
            if (
                agreed == stable.NO_LABEL
                or int(stable._common_label_in_box(certified.network, bounds, query[None]))
                != agreed
            ):
                break
            rank += 1
        labels.append(label)
        ranks.append(rank)
    return labels, ranks


@pytest.mark.usefixtures("no_shape_checks")
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    outputs=st.sampled_from([1, 2, 3]),
    distances=st.sampled_from(
        [
            [1],
            list(range(1, 3)),
            list(range(1, 8)),
            list(range(1, 9)),
            list(range(1, 21)),
            [1, 2, 5, 30],
        ]
    ),
    relation=st.sampled_from(["add_remove", "replace", "remove"]),
)
def test_bisection_finds_what_a_scan_finds(seed, outputs, distances, relation) -> None:
    certified = _model(seed, outputs, distances, relation)
    queries = torch.cat(
        [
            3 * torch.randn(40, 3),
            torch.zeros(1, 3),
            torch.tensor([[3e38, -3e38, 1.0], [1e20, 0.0, 0.0]]),
        ]
    )
    labels, ranks = scan(certified, queries)
    grouped, alone = certified.certify(queries), certified.certify_constant_work(queries)
    assert grouped.labels.tolist() == alone.labels.tolist() == labels
    assert grouped.distances.tolist() == alone.distances.tolist() == ranks


@pytest.mark.parametrize("farthest", [1, 2, 3, 4, 7, 8, 20, 31, 32])
def test_every_query_takes_the_same_number_of_evaluations(
    farthest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of query evaluates the same number of boxes with the same number of rows.

    The queries include stable and unstable ones, ties and overflows.
    """
    certified = _model(0, 2, list(range(1, farthest + 1)))
    seen: list[int] = []
    outputs = stable._outputs
    monkeypatch.setattr(
        stable,
        "_outputs",
        lambda network, bounds, queries: (
            seen.append(len(queries)) or outputs(network, bounds, queries)
        ),
    )
    counts = set()
    queries = torch.cat([5 * torch.randn(30, 3), torch.zeros(1, 3), torch.full((1, 3), 3e38)])
    for query in queries:
        seen.clear()
        certified.certify_constant_work(query[None])
        assert set(seen) == {1}
        counts.add(len(seen))
    assert counts == {1 + farthest.bit_length()}
    assert certified.certify(queries).distances.unique().numel() > 1


def _scaled(certified: hf.Certified, factor: float, beginning: int) -> hf.Certified:
    """Return a copy of the model whose boxes are huge from position `beginning` on."""
    ladder = list(certified.ladder)
    for place in range(beginning, len(ladder)):
        box = {}
        for name, interval in ladder[place].box.items():
            size = torch.full_like(interval.lower, factor)
            box[name] = Interval.point(size) if place == 0 else Interval(-size, size)
        ladder[place] = ParameterBounds(ladder[place].distance, box)
    return replace(certified, ladder=tuple(ladder))


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_an_overflow_at_one_distance_ends_the_certificate_there(outputs: int) -> None:
    """This holds both if the query's numbers overflow and if the box exceeds the float range."""
    certified = _model(1, outputs, list(range(1, 8)))
    queries = 4 * torch.randn(60, 3)
    plain = certified.certify(queries)
    for factor in (1e30, torch.finfo(torch.float32).max / 4):
        for beginning in (1, 4, 7):
            found = _scaled(certified, factor, beginning).certify(queries)
            assert torch.equal(found.labels, plain.labels)
            assert torch.equal(found.distances, plain.distances.clamp(max=beginning - 1))
    nothing = _scaled(certified, torch.finfo(torch.float32).max / 4, 0).certify(queries)
    assert nothing.labels.tolist() == [0] * 60
    assert nothing.distances.tolist() == [0] * 60
    assert nothing.reach == 7


def test_a_query_that_overflows_costs_the_others_nothing() -> None:
    certified = _model(2, 2, list(range(1, 8)))
    queries = 3 * torch.randn(20, 3)
    mixed = torch.cat([queries[:7], torch.full((3, 3), 3e38), queries[7:]])
    alone, together = certified.certify(queries), certified.certify(mixed)
    kept = [*range(7), *range(10, 23)]
    assert torch.equal(alone.distances, together.distances[kept])
    assert torch.equal(alone.labels, together.labels[kept])
    assert int(alone.distances.max()) > 0
