"""Drafts of schemas: what is drafted can be read, and fits the rows it was drafted from."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf

ROWS = {
    "id": list(range(1000, 1060)),
    "age": [20 + i % 50 for i in range(60)],
    "income": [1000 * 1.2 ** (i % 40) for i in range(60)],
    "job, in words": ["nurse", "clerk", None] * 20,
    "sex": [1, 2] * 30,
    "code": [1, 2, 3] * 20,
    "note": [f"text {i}" for i in range(60)],
    "empty": [None] * 60,
    "same": ["x"] * 60,
    "height": [None, *(1.5 + i / 100 for i in range(59))],
    "ill": ["yes", "no", "no"] * 20,
}


def drafted(columns: dict[str, list[object]], label: str = "ill") -> str:
    return hf.preprocessing.draft_schema(pa.table(columns), label, "public.csv")


def test_a_draft_of_every_kind_of_column(tmp_path: Path) -> None:
    text = drafted(ROWS)
    schema = tomllib.loads(text)
    assert schema["classes"] == ["no", "yes"]
    columns = schema["columns"]
    assert columns["age"] == {"range": [20, 69]}
    assert columns["income"] == {"range": [1000, 1200000], "log": True}
    assert columns["job, in words"] == {
        "categories": ["clerk", "nurse"],
        "other": True,
        "missing": "flag",
    }
    assert columns["sex"] == {"range": [1, 2]}
    assert columns["height"]["missing"] == "flag"
    assert 'if these numbers are codes, write instead: categories = ["1", "2", "3"]' in text
    for name, why in (("id", "as in a column of ids"), ("note", "as in a column of ids"),
                      ("empty", "it is empty"), ("same", "a single value")):  # fmt: skip
        assert name not in columns
        assert f"# {name} is left out" in text
        assert why in text
    (tmp_path / "schema.toml").write_text(text)
    rules = hf.Preprocessing.schema(tmp_path / "schema.toml")
    assert len(rules.apply(pa.table(ROWS))) == 60


@settings(max_examples=60, deadline=None)
@given(
    name=st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1),
    cells=st.lists(
        st.one_of(
            st.none(),
            st.floats(-1e12, 1e12),
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
        ),
        min_size=2,
        max_size=60,
    ),
)
def test_a_draft_can_always_be_read(
    name: str, cells: list[object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    values = [None if cell is None else str(cell) for cell in cells]
    labels = ["yes", "no"] * len(cells)
    text = drafted({name + "x": values, "ill": labels[: len(cells)]}) if name + "x" != "ill" else ""
    path = tmp_path_factory.mktemp("draft") / "schema.toml"
    path.write_text(text + "\n[columns.other_column]\nrange = [0, 1]\n", "utf-8")
    if text:
        hf.Preprocessing.schema(path)


@pytest.mark.parametrize(
    ("label", "said"), [("sick", "no column 'sick'"), ("same", "1 label in 60 rows")]
)
def test_a_label_that_cannot_be_learnt_is_refused(label: str, said: str) -> None:
    with pytest.raises(hf.errors.InvalidInput, match=said):
        drafted(ROWS, label)
