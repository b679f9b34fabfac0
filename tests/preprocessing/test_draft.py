"""Drafts of schemas: what is drafted can be read, and fits the rows it was drafted from."""

from __future__ import annotations

import datetime
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
    values = ["" if cell is None else str(cell) for cell in cells]
    count = len(cells)
    rows = {f"{name}x": values, "sex": (["1", "2"] * count)[:count]}
    rows["ill"] = (["yes", "no"] * count)[:count]
    path = tmp_path_factory.mktemp("draft") / "schema.toml"
    path.write_text(drafted(rows), "utf-8")
    assert len(hf.Preprocessing.schema(path).apply(pa.table(rows))) == count  # its own rows fit


@pytest.mark.parametrize(
    ("cells", "entry"),
    [
        (["true", "false"], {"categories": ["false", "true"], "other": True}),
        (["08:00", "09:30"], {"categories": ["08:00", "09:30"], "other": True}),
        (["01", "02"], {"range": [1, 2]}),
        (["NA", "north"], {"categories": ["NA", "north"], "other": True}),
        (["1", "NA"], None),  # a single value
        (["1,5", "2,5"], None),  # decimals with commas
        (["1_000", "2"], {"categories": ["1_000", "2"], "other": True}),
        (["5e-324", "1.7e308"], {"range": [0, 1.7e308]}),
    ],
)
def test_cells_mean_what_they_mean_in_training(
    cells: list[str], entry: dict[str, object] | None, tmp_path: Path
) -> None:
    lines = [f"{cell};{1 + i % 2};{'yes' if i % 2 else 'no'}" for i, cell in enumerate(cells * 9)]
    path = tmp_path / "public.csv"
    path.write_text("\n".join(["c;sex;ill", *lines]) + "\n")
    text = hf.preprocessing.draft_schema(hf.preprocessing.read_records(path, None), "ill", "p")
    assert tomllib.loads(text)["columns"].get("c") == entry
    (tmp_path / "schema.toml").write_text(text)
    rules = hf.Preprocessing.schema(tmp_path / "schema.toml")
    assert len(rules.apply(hf.preprocessing.read_records(path, rules))) == len(lines)


def test_columns_that_cannot_be_drafted_are_refused_or_left_out() -> None:
    date = [datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)]
    rows = {"when": date, "sex": [1, 2], "ill": ["no", "yes"]}
    assert "# when is left out: it holds neither numbers nor words" in drafted(rows)
    with pytest.raises(hf.errors.InvalidInput, match="no column is of use"):
        drafted({"when": date, "ill": ["no", "yes"]})
    twice = pa.Table.from_arrays([pa.array([1, 2])] * 2 + [pa.array(["a", "b"])], ["x", "x", "ill"])
    with pytest.raises(hf.errors.InvalidInput, match="more than one column 'x'"):
        hf.preprocessing.draft_schema(twice, "ill", "public.csv")


@pytest.mark.parametrize(
    ("label", "said"), [("sick", "no column 'sick'"), ("same", "1 label in 60 rows")]
)
def test_a_label_that_cannot_be_learnt_is_refused(label: str, said: str) -> None:
    with pytest.raises(hf.errors.InvalidInput, match=said):
        drafted(ROWS, label)
