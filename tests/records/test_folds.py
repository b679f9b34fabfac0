"""Folds by hashed ids: adding or removing a record moves no other record."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import KFold

import holdfast as hf


def _moved(folds, x: np.ndarray, ids: np.ndarray, gone: int) -> int:
    """Return how many records besides the removed one change in a training set.

    It is the maximum over the folds.
    """
    kept = np.arange(len(x)) != gone
    before = [set(ids[train]) - {ids[gone]} for train, _ in folds.split(x, groups=ids)]
    after = [set(ids[kept][train]) for train, _ in folds.split(x[kept], groups=ids[kept])]
    return max(len(one ^ other) for one, other in zip(before, after, strict=True))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(2, 60),
    parts=st.integers(2, 7),
    by_content=st.booleans(),
)
def test_a_record_that_leaves_moves_no_other(seed, count, parts, by_content) -> None:
    chance = np.random.default_rng(seed)
    x, ids = chance.normal(size=(count, 2)), chance.permutation(1000)[:count]
    gone = int(chance.integers(count))
    folds = hf.records.HashKFold(parts, seed=seed)
    if by_content:
        kept = np.arange(count) != gone
        before = [set(map(tuple, x[train])) - {tuple(x[gone])} for train, _ in folds.split(x)]
        after = [set(map(tuple, x[kept][train])) for train, _ in folds.split(x[kept])]
        assert before == after
    else:
        assert _moved(folds, x, ids, gone) == 0


@pytest.mark.filterwarnings("ignore:The groups parameter")
def test_folds_cut_by_row_number_differ_in_many_records() -> None:
    """Folds by row number differ in many records, and folds by hashed id in none.

    A budget that counts one record would be charged for models that differ in dozens.
    """
    x, ids = np.zeros((400, 1)), np.arange(400)
    assert _moved(KFold(4, shuffle=True, random_state=0), x, ids, gone=0) > 50
    assert _moved(hf.records.HashKFold(4), x, ids, gone=0) == 0


def test_every_record_is_tested_once_and_seeds_differ() -> None:
    x = np.zeros((200, 1))
    splits = list(hf.records.HashKFold(5).split(x, groups=range(200)))
    assert sorted(np.concatenate([test for _, test in splits]).tolist()) == list(range(200))
    assert all(set(train.tolist()).isdisjoint(test.tolist()) for train, test in splits)
    assert min(len(test) for _, test in splits) > 20
    other = list(hf.records.HashKFold(5, seed=1).split(x, groups=range(200)))
    assert any(one[1].tolist() != two[1].tolist() for one, two in zip(splits, other, strict=True))
    assert hf.records.HashKFold(5).get_n_splits() == 5
    assert repr(hf.records.HashKFold(3, seed=2)) == "HashKFold(3, seed=2)"


def test_bad_settings_are_named() -> None:
    with pytest.raises(hf.errors.InvalidInput, match="n_splits=1"):
        hf.records.HashKFold(1)
    with pytest.raises(hf.errors.InvalidInput, match="1 groups for 2 records"):
        list(hf.records.HashKFold(2).split(np.zeros((2, 1)), groups=[1]))


def test_records_of_one_person_share_a_fold() -> None:
    persons = np.arange(300) % 60
    for train, test in hf.records.HashKFold(4).split(np.zeros((300, 1)), groups=persons):
        assert set(persons[train].tolist()).isdisjoint(persons[test].tolist())
