"""Frames of answers, and model cards."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
import torch
from markdown_it import MarkdownIt

import holdfast as hf
from holdfast.serving.predictor import answers_like


@pytest.fixture(scope="module")
def head() -> hf.models.CertifiedModel:
    y = torch.arange(400) % 2
    x = pd.DataFrame({"a": (2.0 * y - 1).numpy(), "b": (torch.arange(400) % 5).numpy()})
    rules = hf.Preprocessing.ranges({"a": (-1, 1), "b": (0, 4)})
    names = ["ill" if label else "well" for label in y.tolist()]
    recipe = hf.LinearRecipe(batch_size=400, travel=100.0)
    return hf.train_linear(
        x, names, recipe, classes=["well", "ill"], preprocessing=rules, dataset="ward",
        progress=False,
    )  # fmt: skip


@pytest.fixture
def predictor(head: hf.models.CertifiedModel, tmp_path: Path) -> hf.PrivatePredictor:
    ledger = hf.Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", home=tmp_path / "home")
    ledger.create_budget("ward", hf.Budget(10.0, 1e-5), queries=100)
    return hf.PrivatePredictor(head, ledger)


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
def test_a_frame_in_gives_the_same_kind_out(predictor: hf.PrivatePredictor, kind: Any) -> None:
    queries = {"a": [1.0, -1.0], "b": [0, 4]}
    found = predictor.ask(kind(queries))
    assert isinstance(found, kind)
    assert list(found.columns) == ["label", "index", "cost", "remaining"]
    assert list(found["label"]) == ["ill", "well"]
    assert list(found["index"]) == [1, 0]
    listed = predictor.ask(queries)
    assert [answer.label for answer in listed] == ["ill", "well"]  # recorded, so the same


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
def test_a_frame_has_no_name_where_there_is_no_label(kind: Any) -> None:
    given = [hf.Answer("ill", 1, 0.1, 0.9), hf.Answer(hf.mechanisms.UNSTABLE, -1, 0.0, 0.9)]
    found = answers_like(kind({"a": [1.0, 2.0]}), given)
    assert found["label"].to_list()[0] == "ill"
    assert found["label"].to_list()[1] is None or pd.isna(found["label"].to_list()[1])
    assert list(found["index"]) == [1, hf.mechanisms.UNSTABLE]


def test_a_frame_of_pandas_keeps_its_index(predictor: hf.PrivatePredictor) -> None:
    queries = pd.DataFrame({"a": [1.0, -1.0], "b": [0, 4]}, index=["p7", "p9"])
    assert list(predictor.ask(queries).index) == ["p7", "p9"]


def test_status_in_answers(predictor: hf.PrivatePredictor) -> None:
    predictor.ask({"a": [1.0, -1.0], "b": [0, 4]})
    status = predictor.ledger.set_share("ward", "ada", 0.1)
    assert (status.answers_left, status.answers_left_by_share["ada"]) == (98, 10)
    assert status.share_spent == pytest.approx(0.02, rel=1e-3)
    preview = predictor.preview({"a": [0.5], "b": [1]}, analyst="ada")
    assert preview.fits == status.answers_left_by_share["ada"]
    raised = predictor.ledger.raise_budget("ward", hf.Budget(20.0, 1e-5))
    preview = predictor.preview({"a": [0.5], "b": [1]}, analyst="bob")
    assert preview.fits == raised.answers_left > 98  # with the noise that was planned


def test_a_card_is_one_of_hugging_face_and_holds_the_statement(
    predictor: hf.PrivatePredictor, head: hf.models.CertifiedModel
) -> None:
    from huggingface_hub import ModelCard

    status = predictor.ledger.status("ward")
    text = hf.serving.model_card(head, status)
    card = ModelCard(text)
    assert card.data.library_name == "holdfast"
    assert card.data.pipeline_tag == "tabular-classification"
    assert "differential-privacy" in card.data.tags
    statement = hf.serving.privacy_statement(head, status)
    assert [line for line in statement.splitlines() if line[:1] in "|-" and line not in text] == []
    assert "accuracy 0" not in text
    with pytest.raises(hf.errors.InvalidInput, match="status is None"):
        hf.serving.model_card(head)


def test_the_card_of_a_released_head(head: hf.models.CertifiedModel, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    ledger = hf.Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", home=tmp_path / "home")
    ledger.create_budget("ward", hf.Budget(10.0, 1e-5), release=True)
    assert isinstance(head, hf.heads.CertifiedHead)
    card = ModelCard(hf.serving.model_card(hf.release_head(head, ledger)))
    assert "released-weights" in card.data.tags
    assert "(10, 1e-05)" in card.text


def test_the_estimator_answers_frames_with_and_without_a_schema(tmp_path: Path) -> None:
    y = torch.arange(400) % 2
    x = pd.DataFrame({"a": (2.0 * y - 1).numpy(), "b": (torch.arange(400) % 5).numpy()})
    for name, rules in (("s", hf.Preprocessing.ranges({"a": (-1, 1), "b": (0, 4)})), ("p", None)):
        ledger = hf.Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", home=tmp_path / "home")
        ledger.create_budget(name, hf.Budget(10.0, 1e-5), queries=50)
        made = hf.HoldfastClassifier(
            records=400, preprocessing=rules, dataset=name, ledger=ledger, classes=[0, 1]
        )
        fitted = made.fit(x, y.numpy())
        assert fitted.predict(x[:4]).tolist() == [0, 1, 0, 1]
        assert ledger.status(name).answers == 4


def test_a_column_of_text_is_named(head: hf.models.CertifiedModel) -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0], "id": ["r1", "r2"]})
    said = "column 'id': 'r1' is not a number; leave the column out"
    with pytest.raises(hf.errors.InvalidInput, match=f"x, {said}"):
        hf.train_linear(frame, [0, 1], hf.LinearRecipe(batch_size=2, travel=1.0), classes=2)
    with pytest.raises(hf.errors.InvalidInput, match=f"X, {said}"):
        hf.HoldfastClassifier(records=2, classes=[0, 1]).fit(frame, [0, 1])


def documents(folder: Path, text: str) -> list[str]:
    """Return all statements and cards of a head whose names all hold a text."""
    y = torch.arange(400) % 2
    x = pd.DataFrame({text: (2.0 * y - 1).numpy()})
    recipe, names = hf.LinearRecipe(batch_size=400, travel=100.0), [f"{text}{i}" for i in y]
    rules = hf.Preprocessing.ranges({text: (-1, 1)})
    options = {"preprocessing": rules, "dataset": text, "progress": False}
    head = hf.train_linear(x, names, recipe, classes=[f"{text}0", f"{text}1"], **options)
    ledger = hf.Ledger(f"sqlite:///{folder / 'ledger.db'}", home=folder / "home")
    budget = hf.Budget(10.0, 1e-5)
    status = ledger.create_budget(text, budget, queries=100, release=True)
    released = hf.release_head(head, ledger, budget=budget)
    return [
        hf.serving.privacy_statement(head, status),
        hf.serving.model_card(head, status),
        released.statement(),
        hf.serving.model_card(released),
    ]


def test_names_in_statements_and_cards_are_shown_as_they_are(tmp_path: Path) -> None:
    """No name becomes markup: rendered, the document has the same tags as with a plain name."""
    text = r"<script>f()</script> a|b `x` ![a](http://b) <http://c> *a* _b_ __c__ &lt; \d ~~e~~"
    text += " https://d.org www.e.org a@f.org"
    for hostile, plain in zip(documents(tmp_path, text), documents(tmp_path, "a"), strict=True):
        markdown = MarkdownIt("commonmark").enable(["table", "strikethrough"])
        assert not re.search(r"https?://|www\.|\w@", hostile)
        rendered = markdown.render(hostile)
        tags = re.findall("<[^>]+>", rendered)
        assert tags == re.findall("<[^>]+>", markdown.render(plain))
        assert html.unescape(re.sub("<[^>]+>", "", rendered)).count(text) >= 3
