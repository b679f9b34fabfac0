"""Records: batches by keyed hash, independence of order and threads, and public records."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.arrays import check_features
from holdfast.records import Split, assign_parts, content_ids, given_ids, prepare


def _data(n: int = 90) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 3, generator=generator), torch.randint(0, 2, (n,), generator=generator)


def _train(x, y, **options) -> hf.Certified:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    recipe = hf.Recipe(epochs=2, batches=3, batch_size=30, clip=0.1)
    return hf.train(model, x, y, recipe, max_distance=2, progress=False, **options)


def _same(one: hf.Certified, other: hf.Certified) -> bool:
    return all(
        one.bounds(k).encloses(other.bounds(k)) and other.bounds(k).encloses(one.bounds(k))
        for k in (0, 1, 2)
    )


def test_the_batch_of_a_record_does_not_depend_on_other_records() -> None:
    x, y = _data()
    batch = assign_parts(content_ids(x, y), 5, 0, b"batch")
    fewer = assign_parts(content_ids(x[1:], y[1:]), 5, 0, b"batch")
    assert torch.equal(batch[1:], fewer)
    assert len(batch.unique()) == 5


def test_equal_records_share_a_batch_and_a_negative_zero_is_a_zero() -> None:
    codes = content_ids(
        torch.tensor([[0.0, 1.0], [-0.0, 1.0], [0.0, 2.0]]), torch.tensor([1, 1, 1])
    )
    assert codes[0] == codes[1] != codes[2]
    assert content_ids(torch.zeros(1, 2), torch.tensor([0])) != content_ids(
        torch.zeros(1, 2), torch.tensor([1])
    )


def test_purposes_and_seeds_give_independent_assignments() -> None:
    codes = given_ids(range(2000), 2000)
    batch, other_seed, split = (
        assign_parts(codes, 10, *key) for key in ((0, b"batch"), (1, b"batch"), (0, b"split"))
    )
    assert 0.05 < float((batch == split).double().mean()) < 0.15
    assert 0.05 < float((batch == other_seed).double().mean()) < 0.15


def test_the_order_of_records_does_not_matter() -> None:
    x, y = _data()
    order = torch.randperm(len(y))
    assert _same(_train(x, y), _train(x[order], y[order]))


def test_threads_do_not_matter() -> None:
    x, y = _data()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = _train(x, y)
    finally:
        torch.set_num_threads(threads)
    assert _same(alone, _train(x, y))


def test_threads_do_not_share_a_selection() -> None:
    """Threads do not interfere through a shared selection.

    In the first step all distances read one selection, which is sorted while it is read.
    """
    x, y = torch.randn(300, 6), torch.arange(300) % 2
    model, recipe = (
        nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 2)),
        hf.Recipe(epochs=2, clip=0.5, batch_size=300),
    )
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 4, 4, 4):
            torch.set_num_threads(count)
            found.append(
                hf.train(model, x, y, recipe, neighbours="replace", max_distance=60, progress=False)
            )
    finally:
        torch.set_num_threads(threads)
    assert all(_same(found[0], other) for other in found[1:])


def test_the_size_of_blocks_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _data()
    whole = _train(x, y)
    from holdfast.networks import loop

    monkeypatch.setattr(loop.Job, "block_rows", property(lambda job: 16))
    assert _same(whole, _train(x, y))


def test_numpy_lists_and_tensors_are_the_same_records() -> None:
    x, y = _data()
    assert _same(_train(x, y), _train(x.numpy(), y.tolist()))
    assert _same(_train(x, y, ids=list(range(90))), _train(x, y, ids=np.arange(90)))
    assert _same(
        _train(x, y, ids=[str(i) for i in range(90)]), _train(x, y, ids=np.arange(90).astype(str))
    )


def test_the_same_id_in_another_type_is_the_same_id() -> None:
    assert given_ids([1, 2, "x"], 3) == given_ids([np.int64(1), torch.tensor(2), np.str_("x")], 3)
    assert given_ids([1], 1) != given_ids(["1"], 1)


def test_array_like_objects_and_views_are_accepted() -> None:
    x, y = _data()
    backwards = x.numpy()[::-1]
    assert _same(_train(x, y), _train(backwards, y.numpy()[::-1]))

    class Frame:
        def __array__(self, dtype=None, copy=None):
            return x.numpy()

    assert _same(_train(x, y), _train(Frame(), y))


def test_blocks_cover_every_record_once() -> None:
    x, y = _data(100)
    split = Split(seed=0, batches=3)
    prepared = prepare(
        hf.Dataset(x, y), split, hf.Neighbours.ADD_REMOVE, classes=2, dtype=torch.float32
    )
    rows = prepared.rows()
    seen = [block.features for batch in range(3) for block in rows.blocks(batch, 16)]
    assert sum(rows.count(batch) for batch in range(3)) == 100
    assert torch.equal(torch.cat(seen).sort(0).values, x.float().sort(0).values)


def test_public_records_pull_without_widening_the_selection() -> None:
    x, y = _data()
    mixed = _train(x, y, public=(x[:30] + 1, y[:30]))
    assert not _same(mixed, _train(x, y))
    again = _train(x, y, public=(x[:30] + 1, y[:30]))
    assert _same(mixed, again)


def test_replace_takes_the_count_as_normaliser() -> None:
    x, y = _data()
    model = nn.Sequential(nn.Linear(3, 2))
    certified = hf.train(
        model, x, y, hf.Recipe(clip=0.1), neighbours="replace", max_distance=1, progress=False
    )
    assert certified.recipe.batch_size == 90
    with_public = hf.train(
        model,
        x,
        y,
        hf.Recipe(clip=0.1),
        neighbours="replace",
        max_distance=1,
        public=(x[:10], y[:10]),
        progress=False,
    )
    assert with_public.recipe.batch_size == 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_numbers_that_are_almost_zero_are_zero(dtype: torch.dtype) -> None:
    """Numbers that are almost zero are set to zero.

    Products with them could be denormal, and the time taken would depend on the weights: a timing
    attack distinguished neighbouring data sets that way.
    """
    x = torch.tensor(
        [[2.0**-40, -(2.0**-40), 2.0**-41, -(2.0**-60), 1e-300, -0.0, 3.0]], dtype=torch.float64
    )
    features = check_features(x, dtype)
    assert features.tolist() == [[2.0**-40, -(2.0**-40), 0.0, 0.0, 0.0, 0.0, 3.0]]
    assert not torch.signbit(features[features == 0.0]).any()


def test_large_integers_are_accepted() -> None:
    assert check_features([[2**64, 1], [10**30, 2.5]], torch.float64).tolist() == [
        [2.0**64, 1.0],
        [1e30, 2.5],
    ]
