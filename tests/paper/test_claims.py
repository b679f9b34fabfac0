"""Each verdict is tested on made-up results that it must judge true, false or not run."""

from __future__ import annotations

import pytest

from holdfast_paper import (
    depth,
    drusen,
    ensembles,
    heat_map,
    inference_budget,
    sentiment,
    single_model,
    students,
    tightness,
)


def as_spreads(*values: float) -> list[dict[str, float]]:
    return [{"mean": value, "std": 0.0, "n": 1} for value in values]


@pytest.mark.parametrize(
    ("sizes", "holds"),
    [
        ((100, 200, 900, 2000), True),
        ((100, 120, 900, 2000), False),
        ((None, None), None),
        ((990, None), False),
        ((100, None), True),
    ],
)
def test_depth(sizes: tuple[int | None, ...], holds: bool | None) -> None:
    found = {
        str(i): {"smallest": size, "tried": {str(size or 1000): {"accuracy": 0.6}}}
        for i, size in enumerate(sizes, 1)
    }
    results = {
        "records": 1000 if None in sizes else 5000,
        "smallest": {"default": found, "paired": found},
    }
    assert [claim.holds for claim in depth.claims(results)] == [holds, holds]


@pytest.mark.parametrize(
    ("values", "counts", "holds"),
    [
        ((0.9, 0.2, 0.1), (1, 10, 100), True),
        ((0.9, 0.8, 0.1), (1, 10, 100), False),
        ((1.0, 1.0, 1.0), (1, 10, 100), False),
        ((0.9, 0.2), (1, 3), None),
    ],
)
def test_tightness(values: tuple[float, ...], counts: tuple[int, ...], holds: bool | None) -> None:
    results = {
        "counts": counts,
        "curves": {tightness.VALUE: as_spreads(*values), tightness.RANK: as_spreads(*values)},
    }
    assert [claim.holds for claim in tightness.claims(results)] == [holds, holds]


@pytest.mark.parametrize(
    ("before", "drusen_right", "normal", "share", "holds"),
    [
        (0.5, 0.85, 0.7, 0.95, [True, True]),
        (1.0, 1.0, 0.0, 0.95, [True, False]),
        (0.5, 0.7, 0.7, 0.85, [False, False]),
    ],
)
def test_drusen(
    before: float, drusen_right: float, normal: float, share: float, holds: list[bool]
) -> None:
    curves = {"1.0": {"shares": [share], "Drusen": drusen_right, "normal": normal}}
    assert [
        claim.holds
        for claim in drusen.claims({"curves": curves, "Drusen before fine-tuning": before})
    ] == holds


@pytest.mark.parametrize(
    ("smooth", "plain", "holds"),
    [
        ((0.9, 0.9, 0.9), (0.5, 0.5, 0.9), True),
        ((0.5, 0.9, 0.9), (0.5, 0.5, 0.9), True),
        ((0.5, 0.5, 0.9), (0.5, 0.5, 0.9), False),
        ((0.5, 0.5, 0.9), (0.5, 0.5, 0.5), False),
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), False),
    ],
)
def test_single_model(smooth: tuple[float, ...], plain: tuple[float, ...], holds: bool) -> None:
    curves = {
        single_model.GLOBAL: as_spreads(*plain),
        single_model.SMOOTH: as_spreads(*smooth),
        single_model.OURS: as_spreads(*smooth),
    }
    results = {
        "epsilons": [0.1, 1.0, 10.0],
        "panels": {"t": {"title": "t", "plain": as_spreads(0.9)[0], "curves": curves}},
    }
    assert [claim.holds for claim in single_model.claims(results)] == [holds]


@pytest.mark.parametrize(
    ("smooth", "argmax", "holds"),
    [
        ((0.8, 0.8, 0.75), (0.5, 0.8, 0.9), [True, True]),
        ((0.8, 0.5, 0.5), (0.5, 0.8, 0.9), [False, False]),
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), [True, False]),
    ],
)
def test_ensembles(smooth: tuple[float, ...], argmax: tuple[float, ...], holds: list[bool]) -> None:
    rows = {
        ensembles.SMOOTH: as_spreads(*smooth),
        ensembles.ARGMAX: as_spreads(*argmax),
        ensembles.OURS: as_spreads(*smooth),
    }
    results = {"panels": {"t": {"title": "t", "sizes": (1, 10, 50), "curves": {"1.0": rows}}}}
    assert [claim.holds for claim in ensembles.claims(results)] == holds


@pytest.mark.parametrize(
    ("ours", "rival", "public", "holds"),
    [
        ((0.9, 0.6), 0.8, 0.7, [True, True]),
        ((0.8, 0.6), 0.8, 0.85, [False, False]),
        ((0.9, 0.9), 0.8, 0.9, [True, False]),
    ],
)
def test_inference_budget(
    ours: tuple[float, ...], rival: float, public: float, holds: list[bool]
) -> None:
    curves = {
        name: as_spreads(0.9, 0.5)
        for name in (inference_budget.GLOBAL, inference_budget.ARGMAX, inference_budget.SMOOTH_25)
    }
    curves |= {
        inference_budget.SMOOTH: as_spreads(0.9, 0.9),
        inference_budget.OURS: as_spreads(*ours),
        inference_budget.HEAD: as_spreads(0.85, 0.7),
    }
    panel = {
        "curves": curves,
        "any number of queries": {
            inference_budget.TUNED: as_spreads(rival)[0],
            inference_budget.RELEASED: as_spreads(0.8)[0],
            inference_budget.RULE: as_spreads(0.805)[0],
        },
        "public labels alone": public,
        "noise-free": {"paper": as_spreads(0.9)[0]},
    }
    results = {"queries": (1, 10), "titles": {"imdb": "IMDB"}, "panels": {"imdb": {"10.0": panel}}}
    few, *rest = holds
    assert [claim.holds for claim in inference_budget.claims(results)] == [True, few, True, *rest]
    panel["any number of queries"][inference_budget.RELEASED] = as_spreads(0.79)[0]
    assert inference_budget.claims(results)[2].holds is False
    curves[inference_budget.ARGMAX] = as_spreads(0.9, 0.9)
    assert inference_budget.claims(results)[0].holds is False


@pytest.mark.parametrize(
    ("accuracy", "shares", "holds"),
    [((0.7, 0.8), ((0.9,), (0.5,)), [True, True]), ((0.5, 0.6), ((0.5,), (0.9,)), [False, False])],
)
def test_sentiment(
    accuracy: tuple[float, ...], shares: tuple[tuple[float], ...], holds: list[bool]
) -> None:
    results = {
        "epochs": (1, 3),
        "distances": (1,),
        "accuracy": accuracy,
        "shares": shares,
        "ours": {"accuracy": 0.8},
    }
    assert [claim.holds for claim in sentiment.claims(results)] == holds


@pytest.mark.parametrize(("smooth", "holds"), [(0.9, True), (0.5, False)])
def test_students(smooth: float, holds: bool) -> None:
    column = {
        "single, smooth": as_spreads(smooth)[0],
        "single, global": as_spreads(0.7)[0],
        "ours, single, budgeted": as_spreads(0.9)[0],
    }
    assert [claim.holds for claim in students.claims({"columns": {"t": column}})] == [holds]


@pytest.mark.parametrize(
    ("far", "close", "holds"), [(100, 0, True), (0, 100, False), (0, 0, False)]
)
def test_heat_map(far: int, close: int, holds: bool) -> None:
    panels = {"far": {"distances": [[far]]}, "close": {"distances": [[close]]}}
    assert [claim.holds for claim in heat_map.claims({"epsilon": 1.0, "panels": panels})] == [holds]


def test_what_was_not_tried_is_not_judged() -> None:
    rows = {
        name: as_spreads(0.8, 0.8) for name in (ensembles.SMOOTH, ensembles.ARGMAX, ensembles.OURS)
    }
    results = {"panels": {"t": {"title": "t", "sizes": (1, 50), "curves": {"1.0": rows}}}}
    assert ensembles.claims(results)[0].holds is None
