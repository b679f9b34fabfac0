"""The guarantees behind the ball: normaliser, contraction, rounding, and the schedule."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.engines import local_engine
from holdfast.heads.ball import (
    HeadLoss,
    Schedule,
    curvature,
    inverse_normaliser,
    make_ball,
)
from holdfast.heads.descent import descend
from holdfast.heads.loops import scaled_rows
from holdfast.heads.schemes import Pairs, Softmax
from holdfast.relations import Neighbours

from .parts import head_blocks

positive = st.fractions(min_value=1, max_value=1000, max_denominator=50)


@settings(deadline=None)
@given(
    count=st.fractions(0, 5000, max_denominator=60),
    share=st.one_of(st.just(Fraction(1)), st.fractions(0, 1, max_denominator=60)),
    size=positive,
    growth=st.fractions(1, 20, max_denominator=9),
)
def test_one_owner_moves_a_step_by_at_most_their_share_of_one_unit(
    count: Fraction, share: Fraction, size: Fraction, growth: Fraction
) -> None:
    """In exact arithmetic: w/N(n+w) + n (1/N(n) - 1/N(n+w)) <= w/b, and n/N(n) <= growth."""
    now, later = (inverse_normaliser(n, size, growth) for n in (count, count + share))
    assert isinstance(now, Fraction | int)
    assert 0 < later <= now
    assert share * later + count * (now - later) <= share / size
    assert count * now <= growth


@settings(deadline=None)
@given(clip=st.floats(0.01, 1.2), radius=st.floats(1.2, 3.0), norm=st.floats(0.01, 3.0))
def test_the_curvature_bounds_the_clipped_loss(clip: float, radius: float, norm: float) -> None:
    norm = min(norm, radius)
    limit = clip / norm
    s = np.linspace(1e-6, 1 - 1e-6, 1001)
    second = np.where(np.minimum(s, 1 - s) < limit, s * (1 - s), 0.0)
    # A residual is clipped once |s - y| reaches the limit: for y = 0, that is s itself.
    of_zero = np.where(s <= limit, s * (1 - s), 0.0)
    assert norm**2 * of_zero.max() <= curvature(clip, radius) * (1 + 1e-9)
    assert norm**2 * second.max() <= norm**2 / 4 + 1e-12


@settings(deadline=None)
@given(
    travel=st.floats(1e-3, 1e4),
    clip=st.floats(0.01, 1.2),
    growth=st.floats(1.0, 20.0),
    decay=st.floats(0.0, 2.0),
    batches=st.integers(1, 5),
)
def test_the_schedule_satisfies_the_condition(
    travel: float, clip: float, growth: float, decay: float, batches: int
) -> None:
    recipe = hf.LinearRecipe(
        batch_size=10, travel=travel, clip=clip, growth=growth, weight_decay=decay, batches=batches
    )
    bend = curvature(clip, recipe.radius)
    schedule = Schedule.of(recipe, bend)
    assert schedule.count % batches == 0
    assert schedule.count * schedule.size == pytest.approx(travel)
    # With norms that exceed the radius by a factor of 1 + 2^-20.
    assert schedule.size * (growth * bend * (1 + 2**-20) ** 2 + 2 * decay) <= 2.0
    assert 0.0 < schedule.decay <= 1.0
    rounds = schedule.count // batches
    exact = sum(schedule.size * schedule.decay ** (batches * i) for i in range(rounds))
    assert exact <= schedule.total() * (1 + 1e-12)
    assert schedule.total() <= exact * (1 + 1e-8)


def test_too_many_steps_are_refused() -> None:
    with pytest.raises(hf.errors.InvalidInput, match="more than 10,000,000 steps"):
        Schedule.of(hf.LinearRecipe(batch_size=1, travel=1e9), 0.36)
    with pytest.raises(hf.errors.InvalidInput, match="batches=1000000000000"):
        Schedule.of(hf.LinearRecipe(batch_size=1, travel=1.0, batches=10**12), 0.36)


def _step(scheme, recipe, records, weights: np.ndarray) -> np.ndarray:
    """Return the weights after one step from `weights`, by the product's own loops."""
    schedule = Schedule.of(recipe, scheme.loss(recipe).curvature)
    partial = np.empty((len(records.blocks), scheme.heads_of_class.shape[1], weights.shape[1]))
    window = records.window(0, len(records.blocks))
    scheme.add_gradients(recipe, window, weights, range(len(records.blocks)), partial)
    total = np.zeros_like(weights)
    for block, (_, _, own) in enumerate(records.blocks):
        total[scheme.heads_of_class[own]] += partial[block]
    counts = records.counts(0, scheme)
    size = scheme.batch_size(recipe)
    factors = [schedule.size * inverse_normaliser(n, size, recipe.growth) for n in counts]
    return schedule.decay * weights - np.array(factors)[:, None] * total


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 60),
    clip=st.sampled_from([0.1, 0.3, 0.6, 1.2]),
    decay=st.sampled_from([0.0, 0.1]),
    scheme=st.sampled_from([Pairs(2), Pairs(3), Softmax(3)]),
)
def test_a_step_never_drives_two_heads_apart(
    seed: int, count: int, clip: float, decay: float, scheme
) -> None:
    """Two weight vectors, however far apart, come no farther apart on the same records."""
    chance = np.random.default_rng(seed)
    recipe = hf.LinearRecipe(
        batch_size=int(chance.integers(1, 40)),
        travel=10.0,
        clip=clip,
        weight_decay=decay,
        growth=float(chance.choice([1.0, 3.0])),
    )
    rows = chance.normal(size=(count, 2)) * 2
    features, norms = scaled_rows(rows, 1.0, 0.1, recipe.radius)
    labels = chance.integers(0, scheme.classes, count)
    zero = np.zeros(count, dtype=np.int64)
    records = head_blocks(
        features,
        norms,
        1.0 / chance.integers(1, 5, count),
        np.zeros((count, scheme.heads)),
        labels,
        zero,
        np.arange(count),
        1,
    )
    shape = (scheme.heads, 3)
    a = chance.normal(size=shape) * 10.0 ** chance.uniform(-3, 2)
    b = a + chance.normal(size=shape) * 10.0 ** chance.uniform(-3, 2)
    before = np.linalg.norm(a - b)
    after = np.linalg.norm(_step(scheme, recipe, records, a) - _step(scheme, recipe, records, b))
    schedule = Schedule.of(recipe, scheme.loss(recipe).curvature)
    assert after <= before * schedule.decay + 1e-12


def _exact_descent(recipe, records, size: float) -> list[Fraction]:
    """Train one head of two classes with far more digits than float64 has."""
    import mpmath

    schedule = Schedule.of(recipe, curvature(recipe.clip, recipe.radius))
    window = records.window(0, len(records.blocks))
    with mpmath.workdps(60):
        number = mpmath.mpf
        rows = [
            [number(float(v)) for v in row]
            for start, end, _ in records.blocks
            for row in window.columns[start * 4 : end * 4].reshape(4, end - start).T
        ]
        weights = [number(0)] * len(rows[0])
        shares = [1 / number(round(1 / share)) for share in records.shares.tolist()]
        owners = np.concatenate([[own] * (end - start) for start, end, own in records.blocks])
        factor = (
            number(schedule.size)
            * number(1)
            * mpmath.mpf(inverse_normaliser(round(sum(shares)), size, recipe.growth))
        )
        for _ in range(schedule.count):
            total = [number(0)] * len(weights)
            for row, own, share in zip(rows, owners, shares, strict=True):
                norm = mpmath.sqrt(sum(v * v for v in row))
                score = sum(w * v for w, v in zip(weights, row, strict=True))
                residual = 1 / (1 + mpmath.exp(-score)) - int(own)
                limit = number(recipe.clip) / norm
                residual = max(-limit, min(limit, residual))
                total = [t + share * residual * v for t, v in zip(total, row, strict=True)]
            weights = [w - factor * t for w, t in zip(weights, total, strict=True)]
        return [Fraction(str(w)) for w in weights]


@pytest.mark.parametrize("sizes", [[1] * 50, [1, 2, 3, 4, 5, 6, 7, 22]], ids=["records", "persons"])
@pytest.mark.parametrize("order", ["given", "reversed", "by size"])
def test_the_rounding_bound_covers_any_order(order: str, sizes: list[int]) -> None:
    """Trained in float64 in adversarial orders, weights stay within E of the exact ones."""
    chance = np.random.default_rng(5)
    recipe = hf.LinearRecipe(batch_size=40, travel=12.0, clip=0.6, growth=2.0)
    rows = chance.normal(size=(50, 3)) * 10.0 ** chance.uniform(-8, 1, size=(50, 1))
    labels = chance.integers(0, 2, 50)
    keys = {
        "given": np.arange(50),
        "reversed": -np.arange(50),
        "by size": np.argsort(np.argsort(np.abs(rows).sum(1))),
    }[order]
    features, norms = scaled_rows(rows, 1.0, 0.1, recipe.radius)
    zero, scheme = np.zeros(50, dtype=np.int64), Pairs(2)
    shares = 1.0 / np.repeat(sizes, sizes)
    records = head_blocks(features, norms, shares, np.zeros((50, 1)), labels, zero, keys, 1)
    with local_engine() as engine:
        found = descend(recipe, scheme, records, None, engine)[0]
    exact = _exact_descent(recipe, records, 40.0)
    off = max(abs(Fraction(float(w)) - e) for w, e in zip(found, exact, strict=True))
    ball = make_ball(
        recipe,
        scheme.loss(recipe),
        Neighbours.ADD_REMOVE,
        batch_size=40.0,
        width=4,
        offset_limit=0.0,
    )
    assert 0 < off <= Fraction(ball.rounding) / 2
    assert ball.rounding < 1e-9 * ball.per_move


def test_the_ball_grows_with_what_it_depends_on() -> None:
    loss = HeadLoss(0.6, 0.6, 0.36, 0.25, 10.0, 1)

    def sensitivity(relation: Neighbours = Neighbours.ADD_REMOVE, **changes: float) -> float:
        recipe = hf.LinearRecipe(**{"batch_size": 100, "travel": 100.0, **changes})
        return make_ball(
            recipe, loss, relation, batch_size=100.0, width=5, offset_limit=0.0
        ).sensitivity

    assert sensitivity() == pytest.approx(0.6, rel=1e-5)
    assert sensitivity(Neighbours.REPLACE) == pytest.approx(1.2, rel=1e-5)
    assert sensitivity(travel=200.0) == pytest.approx(1.2, rel=1e-5)
    assert sensitivity(batches=4) == pytest.approx(0.15, rel=1e-5)
    assert sensitivity(weight_decay=0.1) < 0.1
