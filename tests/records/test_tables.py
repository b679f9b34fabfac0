"""Tables from files: a cell means the same whatever rows come with it.

Otherwise a record's features would depend on other records.
"""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

import holdfast as hf
from holdfast.preprocessing import read_records
from holdfast.preprocessing.columns import Category, Number, category_name
from holdfast.preprocessing.tables import column, read_table

SCHEMA = hf.Preprocessing(
    (
        Number("n", missing="flag"),
        Category("c", ("a", "3", "9007199254740993", "true", "NA"), True, "flag"),
    )
)
NUMBERS = [
    "1",
    "-0",
    "0.5",
    "",
    "9007199254740993",
    "1e-400",
    "nan",
    "NA",
    "2020-01-01",
    "2020-01-01 10:00:00",
    "true",
    "0x10",
    "12:30",
    "x",
    "1_000",
]
WORDS = [
    "a",
    "3",
    "3.0",
    "",
    "NA",
    "nan",
    "null",
    "True",
    "true",
    "9007199254740993",
    "01",
    "1.0.0",
    "é",
]


def encoded(path: Path) -> list[list[float]] | str:
    try:
        rows = SCHEMA.apply(read_records(path, SCHEMA)).tolist()
        return [[value.hex() for value in row] for row in rows]
    except hf.errors.InvalidInput:
        return "refused"


def write(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text(
        "n,c,note\n" + "".join(f'{number},{word},"with, comma"\n' for number, word in rows)
    )
    return path


def test_a_cell_of_a_csv_means_the_same_beside_any_other(tmp_path: Path) -> None:
    alone = {number: encoded(write(tmp_path / "t.csv", [(number, "a")])) for number in NUMBERS}
    for number, other in itertools.product(NUMBERS, repeat=2):
        together = encoded(write(tmp_path / "t.csv", [(number, "a"), (other, "a")]))
        if together != "refused":
            assert together == [*alone[number], *alone[other]]
        else:
            assert "refused" in (alone[number], alone[other])
    words = {word: encoded(write(tmp_path / "t.csv", [("1", word)])) for word in WORDS}
    for word, other in itertools.product(WORDS, repeat=2):
        assert encoded(write(tmp_path / "t.csv", [("1", word), ("1", other)])) == [
            *words[word],
            *words[other],
        ]
    assert words["3"] == words["3.0"]
    assert words["NA"] != words[""]  # a listed category, not a missing value


CELLS = [1, 2.5, None, "a", "", True, 9007199254740993, float("nan"), "3.0", 3]


def test_a_cell_of_a_mapping_means_the_same_beside_any_other() -> None:
    alone = {i: SCHEMA.apply({"n": [1], "c": [cell]}).tolist() for i, cell in enumerate(CELLS)}
    for i, j in itertools.product(range(len(CELLS)), repeat=2):
        assert SCHEMA.apply({"n": [1, 1], "c": [CELLS[i], CELLS[j]]}).tolist() == [
            *alone[i],
            *alone[j],
        ]


def test_a_null_elsewhere_does_not_change_whole_numbers_of_a_parquet(tmp_path: Path) -> None:
    for cells in ([9007199254740993], [9007199254740993, None]):
        parquet.write_table(pa.table({"n": [1.0] * len(cells), "c": cells}), tmp_path / "t.parquet")
        assert SCHEMA.apply(read_records(tmp_path / "t.parquet", SCHEMA))[0].tolist() == [
            1,
            0,
            0,
            0,
            1,
            0,
            0,
            0,
            0,
        ]


@pytest.mark.parametrize("cell", [datetime.date(2020, 1, 1), [1], {"a": 1}, b"a"])
def test_what_is_no_word_is_refused_in_a_column_of_categories(cell) -> None:
    with pytest.raises(hf.errors.InvalidInput, match="column 'c', row 1"):
        SCHEMA.apply({"n": [1], "c": [cell]})


def test_inner_quotation_marks_are_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        'n,c,note\n1,a,5" pipe\n2,a,6" pipe\n3,a,"say ""hi"", then go"\n'
    )
    assert column(read_table(tmp_path / "t.csv", ["n"]), "n", tmp_path) == [1.0, 2.0, 3.0]


def test_numbers_as_text_follow_the_same_rules_as_in_a_csv() -> None:
    assert SCHEMA.apply({"n": ["1.5", "NA", "null", ""], "c": ["a"] * 4})[:, 1].tolist() == [
        0,
        1,
        1,
        1,
    ]
    with pytest.raises(hf.errors.InvalidInput, match="'1_0' is not a number"):
        SCHEMA.apply({"n": ["1_0"], "c": ["a"]})


def test_nested_lists_keep_each_number_by_itself() -> None:
    big = 2**60 + 2**36 + 1
    x = torch.tensor([[0.0, 1.0]] * 2)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    trained = hf.train(
        model, x, torch.tensor([0, 1]), hf.Recipe(batch_size=2), max_distance=1, progress=False
    )
    whole, mixed = trained.features([[big, 1], [1, 1]]), trained.features([[big, 1], [1, 0.5]])
    assert torch.equal(whole[0], mixed[0])


@pytest.mark.parametrize(
    "cell",
    [
        datetime.date(2020, 1, 1),
        datetime.datetime(2020, 1, 1),
        datetime.timedelta(1),
        [1.0],
        {"a": 1.0},
        b"1",
    ],
)
def test_what_is_no_number_is_refused_in_a_column_of_numbers(tmp_path: Path, cell) -> None:
    parquet.write_table(pa.table({"n": [cell, None], "c": ["a", "a"]}), tmp_path / "t.parquet")
    with pytest.raises(hf.errors.InvalidInput, match="column 'n'"):
        SCHEMA.apply(read_records(tmp_path / "t.parquet", SCHEMA))


def test_quoted_line_breaks_stay_in_their_cell_however_long_the_file(tmp_path: Path) -> None:
    """Line breaks in quotes stay in their cell in files of any length.

    The reader works in blocks of one megabyte, and such a line break may lie at the end of a block.
    """
    for extra in ("", "7,x\n", "77,xx\n"):
        (tmp_path / "t.csv").write_text(
            "n,note\n" + extra + '1,"12 Main St\n5, Springfield"\n' * 60_000
        )
        table = read_table(tmp_path / "t.csv", ["n"])
        assert len(table) == 60_000 + bool(extra)
        assert set(column(table, "n", tmp_path)) <= {1.0, 7.0, 77.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('n,c\n1,"a\n2,a\n', "quotation marks"),
        ('n,c\n1,"a\n2,"a\n3,a\n', "quotation marks"),
        ("n,c,n\n1,a,2\n", "2 columns named 'n'"),
        ("", "not a readable table"),
        ("n,c\n1\n", "row 1: 1 cells; expected 2"),
        ("c\na\n", "no column 'n'"),
        (b"\xff\xfe\x00,c\n1,a\n", "not a readable table"),
    ],
)
def test_damaged_tables_are_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    (tmp_path / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(hf.errors.InvalidInput, match=message):
        SCHEMA.apply(read_records(tmp_path / "t.csv", SCHEMA))


def test_an_empty_line_of_a_one_column_table_is_a_missing_value(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("n\n1\n\n3\n")
    one = hf.Preprocessing((Number("n", missing="flag"),))
    assert one.apply(read_records(tmp_path / "t.csv", one)).tolist() == [[1, 0], [0, 1], [3, 0]]


@given(
    st.one_of(
        st.text(max_size=8),
        st.from_regex(r"-?[0-9]{1,3}(\.[0-9]{1,3}){0,2}", fullmatch=True),
        st.floats(allow_nan=False),
        st.integers(),
        st.booleans(),
    )
)
def test_normalising_a_category_name_is_idempotent(value) -> None:
    """Normalising a category name twice gives the same name; names are saved and read back."""
    if value != "":
        assert category_name(category_name(value)) == category_name(value)
