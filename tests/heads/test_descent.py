"""The fused loops against slow, obvious references, and the same bits in any order of rows."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import holdfast as hf
from holdfast.heads.ball import Schedule, inverse_normaliser
from holdfast.heads.loops import scaled_rows, sum_blocks
from holdfast.heads.schemes import OneVersusRest, Pairs, Softmax, make_scheme


def _reference(head: hf.heads.CertifiedHead, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Train by one backward pass per record, each gradient clipped by its norm."""
    recipe, scheme = head.recipe, head.scheme
    features = torch.cat(
        [x.double() * recipe.scale, torch.full((len(x), 1), 0.1, dtype=torch.float64)], 1
    )
    norms = features.norm(dim=1, keepdim=True)
    features = features * (recipe.radius / norms).clamp(max=1.0)
    schedule = Schedule.of(recipe, scheme.loss(recipe).curvature)
    weights = torch.zeros(scheme.heads, features.shape[1], dtype=torch.float64)
    heads = torch.from_numpy(scheme.heads_of_class)
    for _ in range(schedule.count):
        total, counts = torch.zeros_like(weights), torch.zeros(scheme.heads)
        for row, label in zip(features, y.tolist(), strict=True):
            counts[heads[label]] += 1
            total += _gradient(scheme, recipe, weights, row, label)
        size = scheme.batch_size(recipe)
        factors = [schedule.size * inverse_normaliser(int(n), size, recipe.growth) for n in counts]
        weights = (
            schedule.decay * weights - torch.tensor(factors, dtype=torch.float64)[:, None] * total
        )
    return weights


def _gradient(scheme, recipe, weights, row, label) -> torch.Tensor:
    leaf = weights.clone().requires_grad_(True)
    scores = leaf @ row
    if isinstance(scheme, Softmax):
        functional.cross_entropy(scores[None], torch.tensor([label])).backward()
        strength = 1.0 - torch.softmax(scores.detach(), 0)[label]
        return leaf.grad * min(1.0, float(recipe.clip / row.norm() / strength))
    result = torch.zeros_like(weights)
    for place, head in enumerate(scheme.heads_of_class[label]):
        target = torch.tensor(scheme.targets[label, place])
        leaf.grad = None
        functional.binary_cross_entropy_with_logits(scores[head], target).backward(
            retain_graph=True
        )
        own = isinstance(scheme, Pairs) or bool(target == 1.0)
        clip = recipe.clip if own else scheme.other_clip(recipe)
        gradient = leaf.grad[head]
        result[head] += gradient * min(1.0, float(clip / gradient.norm()))
    return result


@pytest.mark.parametrize("decay", [0.0, 0.2])
@pytest.mark.parametrize(
    ("classes", "multiclass"), [(2, "pairs"), (4, "pairs"), (4, "one_vs_rest"), (4, "softmax")]
)
def test_training_is_that_of_one_backward_pass_per_record(
    classes: int, multiclass: str, decay: float
) -> None:
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(30, 3, generator=chance)
    y = torch.randint(0, classes, (30,), generator=chance)
    recipe = hf.LinearRecipe(batch_size=25, travel=6.0, clip=0.25, growth=2.0, weight_decay=decay)
    head = hf.train_linear(x, y, recipe, classes=classes, multiclass=multiclass, progress=False)
    assert torch.allclose(head.weights, _reference(head, x, y), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("multiclass", ["pairs", "softmax"])
@pytest.mark.parametrize("with_ids", [True, False])
def test_the_order_of_rows_and_the_threads_change_nothing(multiclass: str, with_ids: bool) -> None:
    chance = np.random.default_rng(1)
    x, y = chance.normal(size=(5000, 60)), chance.integers(0, 3, 5000)
    x[100:200], y[100:200] = x[0], y[0]  # equal records
    recipe = hf.LinearRecipe(batch_size=2500, travel=5.0, batches=2)
    found = []
    threads = torch.get_num_threads()
    for rows, count in ((np.arange(5000), 1), (chance.permutation(5000), 2)):
        torch.set_num_threads(count)
        head = hf.train_linear(
            x[rows],
            y[rows],
            recipe,
            classes=3,
            multiclass=multiclass,
            ids=rows.tolist() if with_ids else None,
            progress=False,
        )
        found.append(head.weights)
    torch.set_num_threads(threads)
    assert torch.equal(*found)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 300))
def test_blocks_are_added_without_loss(seed: int, blocks: int) -> None:
    """Sums of blocks of wildly different sizes are correct to the last bits of a double."""
    chance = np.random.default_rng(seed)
    partial = chance.normal(size=(blocks, 1, 2)) * 10.0 ** chance.uniform(-8, 8, (blocks, 1, 1))
    high, low = np.zeros((1, 2)), np.zeros((1, 2))
    about = np.zeros((blocks, 3), dtype=np.int64)
    sum_blocks(partial, about, np.array([[0]]), 0, blocks, high, low)
    for column in range(2):
        exact = sum(Fraction(float(v)) for v in partial[:, 0, column])
        size = sum(abs(Fraction(float(v))) for v in partial[:, 0, column])
        assert abs(Fraction(float((high + low)[0, column])) - exact) <= abs(exact) * Fraction(
            1, 2**52
        ) + size * Fraction(1, 2**95)


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.floats(allow_nan=True, allow_infinity=True, width=64), min_size=3, max_size=3),
        min_size=1,
        max_size=4,
    ),
    st.floats(1e-3, 1e3),
)
def test_scaled_rows_are_within_the_radius_and_finite(
    rows: list[list[float]], scale: float
) -> None:
    given_rows = np.array(rows)
    features, norms = scaled_rows(given_rows, scale, 0.1, 1.2)
    assert np.isfinite(features).all()
    assert (np.linalg.norm(features, axis=1) <= 1.2 * (1 + 2**-20)).all()
    assert np.allclose(norms, np.linalg.norm(features, axis=1), rtol=1e-12, atol=0)
    for row in range(len(rows)):  # each row by itself
        alone, norm = scaled_rows(given_rows[row : row + 1], scale, 0.1, 1.2)
        assert (alone[0] == features[row]).all()
        assert norm[0] == norms[row]


def test_schemes() -> None:
    assert isinstance(make_scheme("pairs", 30), Pairs)
    assert isinstance(make_scheme("pairs", 31), OneVersusRest)
    assert isinstance(make_scheme("softmax", 2), Pairs)
    assert make_scheme("pairs", 5).heads == 10
    assert make_scheme("softmax", 5).heads == 5
    with pytest.raises(hf.errors.InvalidInput, match="multiclass='votes'"):
        make_scheme("votes", 3)
