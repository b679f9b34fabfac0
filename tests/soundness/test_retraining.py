"""The certified claim: after retraining on neighbours, parameters lie in their boxes.

Every stable label stays the same.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .cases import CASES, REACH, Case, neighbouring_data_set

RETRAININGS = 30  # per case


def test_enough_retrainings_are_planned() -> None:
    assert len(CASES) * RETRAININGS >= 2000


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_retrained_neighbour_lies_in_the_box(case: Case, count: Callable[..., None]) -> None:
    model = case.model(seed=0)
    x, y, ids = case.records_from(seed=0)
    certified = case.train(model, x, y, ids)
    queries = case.queries(seed=0)
    certificate = certified.certify(queries)
    certifying, largest = 0, 0.0
    for seed in range(RETRAININGS):
        moves = 1 + seed % REACH
        neighbour = case.retrain(
            model, *neighbouring_data_set(case, certified, x, y, ids, moves, seed)
        )
        bounds = certified.bounds(moves)
        assert bounds.encloses(neighbour.bounds(0)), (
            f"a retrained model left the box of distance {moves} (seed {seed})"
        )
        stable = certificate.distances >= moves
        assert torch.equal(neighbour.predict(queries)[stable], certificate.labels[stable])
        certifying += int(stable.any())
        largest = max(largest, _reached(certified, neighbour, moves))
    assert certifying >= RETRAININGS / REACH, (
        "too few boxes certify anything, so the check above is too weak"
    )
    shown = {
        "retrainings": RETRAININGS,
        "with a certifying box": certifying,
        "largest (parameter - nominal)/radius": largest,
    }
    count("retrainings in their boxes, no violation", **shown)


def _reached(certified, neighbour, moves: int) -> float:
    """Return the largest |parameter - nominal| / radius.

    The radius is that of the side on which the parameter lies.
    """
    largest = 0.0
    for name, box in certified.bounds(moves).box.items():
        centre = certified.bounds(0).lower[name]
        shift = neighbour.bounds(0).lower[name] - centre
        radius = torch.where(shift > 0, box.upper - centre, centre - box.lower)
        largest = max(
            largest,
            float((shift.abs() / radius)[shift != 0].max()) if bool((shift != 0).any()) else 0.0,
        )
    return largest
