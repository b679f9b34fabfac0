"""The preparation of records against stored digests and against an oracle in plain Python.

A record that silently moves to another batch or member changes every certificate, and a person
whose records are counted otherwise changes what is private, without an error.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from .oracle import Placed, cast, place
from .prepared import (  # the rules have tests of their own
    CASES,
    CLASSES,
    DIGESTS,
    Case,
    Data,
    Where,
    _features,
    _rules,
    digest,
    prepared,
)


def test_every_case_has_a_digest_and_each_way_is_covered() -> None:
    assert set(json.loads(DIGESTS.read_text())) == {case.name for case in CASES}
    for storage in ("memory", "parquet"):
        covered = {(case.is_head, case.extra) for case in CASES if case.storage == storage}
        assert covered == {
            (head, extra)
            for head in (False, True)
            for extra in ("plain", "rules", "whitening", "front", "offset" if head else "public")
        }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_record_moves(case: Case, tmp_path: Path) -> None:
    assert digest(case, tmp_path) == json.loads(DIGESTS.read_text())[case.name]


def expected(case: Case, data: Data) -> Where:
    """Return what the oracle says, with rows that are equal under one number."""
    double = case.kind != "float32"
    rules = _rules(case, data)
    rows = data.rows if rules is None else rules.apply(data.x).tolist()
    placed = place(
        rows,
        data.labels,
        double=double,
        seed=4,
        members=case.members,
        batches=case.batches,
        ids=data.ids if case.keys == "ids" else None,
        persons=data.persons if case.keys == "persons" else None,
        most=data.most,
    )
    first: dict[bytes, int] = {}
    for row, content in enumerate(rows):
        first.setdefault(cast([0.0 + value for value in content], double), row)
    same = [first[cast([0.0 + value for value in content], double)] for content in rows]

    def one(member: int, batch: int) -> list[tuple[int, int, int]]:
        own = [each for each in placed if (each.member, each.batch) == (member, batch)]
        if case.is_head:
            own.sort(key=lambda each: (each.label, each.sort_key))
        return [(same[each.row], each.label, each.count) for each in own]

    return [[one(member, batch) for batch in range(case.batches)] for member in range(case.members)]


def assert_as_expected(case: Case, data: Data, folder: Path) -> None:
    size, owners, where = prepared(case, data, folder)
    wanted = expected(case, data)
    if case.storage == "parquet" and not case.is_head:  # sums are exact: any order is right
        where, wanted = ([[sorted(batch) for batch in m] for m in each] for each in (where, wanted))
    assert where == wanted
    used = {"content": len(data.labels), "ids": len(data.labels)}.get(
        case.keys, len(set(data.persons))
    )
    if owners is not None:
        assert owners == used
    if case.keys == "ids":  # the relation is "replace", under which the number is public
        public = 7 if case.extra == "public" else 0
        assert size == -(-len(data.labels) // (case.members * case.batches)) + public


numbers = st.one_of(
    st.sampled_from([0.0, -0.0, 1e-13, -1e-13, 2.0**-40, 0.1, 1 / 3, 1e30]),
    st.integers(-3, 3).map(float),
)


@st.composite
def data_sets(draw: st.DrawFn) -> Data:
    count = draw(st.integers(3, 14))
    rows = draw(st.lists(st.tuples(numbers, numbers, numbers), min_size=count, max_size=count))
    labels = draw(st.lists(st.integers(0, CLASSES - 1), min_size=count, max_size=count))
    owners = st.integers(0, 4) if draw(st.booleans()) else st.sampled_from("pqr")
    return Data(
        [list(row) for row in rows],
        labels,
        draw(st.lists(st.integers(-50, 50), min_size=count, max_size=count, unique=True)),
        draw(st.lists(owners, min_size=count, max_size=count)),
        draw(st.one_of(st.none(), st.integers(1, 3))),
    )


@pytest.mark.filterwarnings("ignore::holdfast.errors.HoldfastWarning")
@settings(deadline=None, max_examples=150)
@given(
    data_sets(),
    st.sampled_from(["float32", "float64", "pairs", "one_vs_rest", "softmax"]),
    st.sampled_from(["content", "ids", "persons"]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(["memory", "memory", "parquet"]),
    st.sampled_from(["plain", "rules"]),
)
def test_records_go_where_the_oracle_says(
    data: Data, kind: str, keys: str, batches: int, members: int, storage: str, extra: str
) -> None:
    case = Case(kind, keys, batches, members, storage, extra)
    with tempfile.TemporaryDirectory() as folder:
        assert_as_expected(case, data, Path(folder))


def test_the_oracle_notices_each_mistake() -> None:
    """Another seed, a content that is hashed before the cast, or an owner who is left out."""
    data = Data([[0.1, 1.0, 2.0]] * 2 + [[1 / 3, 0.0, 1.0]] * 6, [0, 1] * 4, [], list("aabbbbcc"))
    options = {"double": False, "seed": 4, "members": 3, "batches": 3, "most": 2}
    right = place(data.rows, data.labels, persons=data.persons, **options)
    assert [each.count for each in right] == [2] * len(right)
    assert len(right) == 6
    contents = [replace(each, row=0) for each in place(data.rows, data.labels, **options)]
    for changed in ({"double": True}, {"seed": 5}):
        other = place(data.rows, data.labels, **(options | changed))
        assert [replace(each, row=0) for each in other] != contents
    assert isinstance(right[0], Placed)
    assert torch.equal(_features(data, None, torch.float64), data.x)
