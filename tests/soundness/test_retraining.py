"""The claim itself: retrain on real neighbours, and every parameter lies in its box, every stable label stays."""

from __future__ import annotations

import pytest
import torch

from .cases import CASES, REACH, Case, moved

RETRAININGS = 30  # per case
SEEN = {"retrainings": 0, "certifying": 0, "largest": 0.0}


def test_enough_retrainings_are_planned() -> None:
    assert len(CASES) * RETRAININGS >= 2000


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_retrained_neighbour_lies_in_the_box(case: Case) -> None:
    model = case.model(seed=0)
    x, y, ids = case.records_from(seed=0)
    certified = case.train(model, x, y, ids)
    queries = case.queries(seed=0)
    certificate = certified.certify(queries)
    for seed in range(RETRAININGS):
        moves = 1 + seed % REACH
        neighbour = case.retrain(model, *moved(case, certified, x, y, ids, moves, seed))
        bounds = certified.bounds(moves)
        assert bounds.encloses(neighbour.bounds(0)), f"a retrained model left the box of distance {moves} (seed {seed})"
        stable = certificate.distances >= moves
        assert torch.equal(neighbour.predict(queries)[stable], certificate.labels[stable])
        SEEN["retrainings"] += 1
        SEEN["certifying"] += int(stable.any())
        SEEN["largest"] = max(SEEN["largest"], _reached(certified, neighbour, moves))


def _reached(certified, neighbour, moves: int) -> float:
    """The largest (parameter - nominal) / radius on the side where the parameter lies."""
    largest = 0.0
    for name, box in certified.bounds(moves).box.items():
        centre = certified.bounds(0).lower[name]
        shift = neighbour.bounds(0).lower[name] - centre
        radius = torch.where(shift > 0, box.upper - centre, centre - box.lower)
        largest = max(largest, float((shift.abs() / radius)[shift != 0].max()) if bool((shift != 0).any()) else 0.0)
    return largest


def test_most_boxes_still_certify(figures) -> None:
    """Boxes so wide that nothing is certified would make the claim above easy: at least half must certify a query."""
    if SEEN["retrainings"] < 2000:
        pytest.skip("only some of the retrainings were selected")
    figures["retrainings in their boxes"] = (
        f"{SEEN['retrainings']}, violations 0, with a certifying box {SEEN['certifying']}, "
        f"largest (parameter - nominal)/radius {SEEN['largest']:.4f}"
    )
    assert SEEN["certifying"] >= SEEN["retrainings"] / 2
