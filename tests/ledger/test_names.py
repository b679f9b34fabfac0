"""Names that look the same are one name; names that older versions stored keep their bytes."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import holdfast as hf
from holdfast import checks
from holdfast.cli import app
from holdfast.ledger import ledger as ledger_module
from holdfast.ledger.accounts import Account, Accounts

from .parts import query, small_model, sqlite_at

NFC, NFD = "Zoë", "Zoe\u0308"
TENTH = hf.StableResponse(0.1)


@pytest.fixture
def old_version(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let names be stored as an older version stored them: as they are."""
    monkeypatch.setattr(ledger_module, "check_new_name", checks.check_name)
    monkeypatch.setattr(Account, "analyst_named", lambda self, name: name)
    monkeypatch.setattr(Accounts, "find", lambda self, name: self.accounts.get(name))
    return monkeypatch


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_new_names_are_canonical_or_refused(name: str) -> None:
    try:
        new = checks.check_new_name("name", name)
    except hf.errors.InvalidInput:
        return
    assert new == checks.canonical_name(new) == unicodedata.normalize("NFC", name)
    assert checks.check_new_name("name", new) == new
    assert checks.canonical_name(unicodedata.normalize("NFD", name)) == new


@pytest.mark.parametrize("name", [" ward-7", "ward-7 ", " "])
def test_blanks_at_the_ends_of_new_names_are_refused(tmp_path: Path, name: str) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    with pytest.raises(hf.errors.InvalidInput, match="without blanks at its ends"):
        ledger.create_budget(name, hf.Budget(1.0), queries=10)
    with pytest.raises(hf.errors.InvalidInput, match="without blanks at its ends"):
        small_model(dataset=name)
    ledger.create_budget("ward-7", hf.Budget(1.0), queries=10)
    for work in (
        lambda: ledger.set_share("ward-7", f"{name}a ", 0.5),
        lambda: hf.ledger.add_key(ledger, "ward-7", f" {name}"),
        lambda: hf.PrivatePredictor(small_model(), ledger).ask(query(1), analyst=f"{name}a "),
    ):
        with pytest.raises(hf.errors.InvalidInput, match="without blanks at its ends"):
            work()
    assert ledger.verify() == 1


def test_two_spellings_are_one_data_set_and_one_analyst(tmp_path: Path) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    assert ledger.create_budget(NFD, hf.Budget(1.0), queries=10).name == NFC
    for name in (NFC, NFD):
        with pytest.raises(hf.errors.InvalidInput, match=f"{NFC!r} has a budget already"):
            ledger.create_budget(name, hf.Budget(1.0), queries=10)
    ledger.raise_budget(NFD, hf.Budget(2.0))
    ledger.set_share(NFD, NFD, 0.25)
    hf.ledger.add_key(ledger, NFD, NFD)
    (key,) = hf.ledger.list_keys(ledger, NFC)
    assert (key.analyst, ledger.names()) == (NFC, [NFC])
    hf.ledger.revoke_key(ledger, NFD, key.id)
    answers = [
        hf.PrivatePredictor(small_model(dataset=name), ledger, mechanism=TENTH)
        for name in (NFC, NFD)
    ]
    assert answers[1].model.dataset == NFC
    assert [answers[0].ask(query(1), analyst=name).cost for name in (NFC, NFD)] == [0.1, 0.0]
    assert answers[0].preview(query(2), analyst=NFD).remaining == pytest.approx(0.4)
    with pytest.raises(hf.BudgetExhausted, match="by a share"):
        answers[0].ask([[0.1 * number, 0.0] for number in range(5)], analyst=NFD)
    ledger.close_budget(NFD, reason="done")
    assert {entry.dataset for entry in ledger.entries()} == {NFC}
    assert {entry.analyst for entry in ledger.entries()} == {"", NFC}


def test_another_ledger_is_found_by_any_spelling(tmp_path: Path) -> None:
    hf.Ledger(f"sqlite:///{tmp_path}/first.db").create_budget(NFD, hf.Budget(1.0))
    with pytest.raises(hf.errors.InvalidInput, match="another ledger"):
        hf.Ledger(f"sqlite:///{tmp_path}/second.db").create_budget(NFC, hf.Budget(1.0))


def test_stored_names_stay_reachable(tmp_path: Path, old_version: pytest.MonkeyPatch) -> None:
    """By their bytes, and by any spelling if no other name has those bytes."""
    ledger = hf.Ledger(sqlite_at(tmp_path))
    for name in (NFD, " ward"):
        ledger.create_budget(name, hf.Budget(1.0), queries=10)
        model = small_model(dataset="new")
        object.__setattr__(model, "dataset", name)
        hf.PrivatePredictor(model, ledger, mechanism=TENTH).ask(query(1), analyst=NFD)
        ledger.set_share(name, NFD, 0.5)
    old_version.undo()
    old_version.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    again = hf.Ledger(sqlite_at(tmp_path))
    for name, other in ((NFD, NFC), (" ward", "ward")):
        assert again.status(name).name == again.status(other).name == name
        with pytest.raises(hf.errors.InvalidInput, match="has a budget already"):
            again.create_budget(other, hf.Budget(1.0), queries=10)
        retrained = hf.PrivatePredictor(small_model(dataset=other), again, mechanism=TENTH)
        assert retrained.ask(query(1), analyst=NFC).cost == 0.1
        assert retrained.ask(query(1), analyst=NFD).cost == 0.0
        assert list(again.status(other).by_analyst) == [NFD]
        assert hf.serving.privacy_statement(retrained.model, again.status(other))


def test_pairs_of_old_names_stay_two_and_doctor_names_them(
    tmp_path: Path, old_version: pytest.MonkeyPatch
) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    for name in (NFC, NFD):
        ledger.create_budget(name, hf.Budget(1.0), queries=10)
        ledger.set_share(NFC, name, 0.5)
    old_version.undo()
    old_version.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    again = hf.Ledger(sqlite_at(tmp_path))
    assert again.names() == sorted([NFC, NFD])
    assert [again.status(name).name for name in (NFC, NFD)] == [NFC, NFD]
    again.raise_budget(NFD, hf.Budget(2.0))
    assert [again.status(name).budget.epsilon for name in (NFC, NFD)] == [1.0, 2.0]
    done = CliRunner().invoke(app, ["doctor", "--json", "--ledger", sqlite_at(tmp_path)])
    texts = [row["text"] for row in json.loads(done.stdout) if row["what"] == "names"]
    assert len(texts) == 2
    assert all("'Zo\\xeb'" in text and "'Zoe\\u0308'" in text for text in texts)


def test_a_name_of_a_token_cannot_be_had_with_blanks(tmp_path: Path) -> None:
    ledger = hf.Ledger(sqlite_at(tmp_path))
    ledger.create_budget("ward-7", hf.Budget(1.0), queries=10)
    ledger.set_share("ward-7", "oidc:eve", 0.5)
    for name in ("oidc:eve", " oidc:eve"):
        with pytest.raises(hf.errors.InvalidInput, match="those of tokens"):
            hf.ledger.add_key(ledger, "ward-7", name)
