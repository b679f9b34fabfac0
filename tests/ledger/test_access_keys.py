"""Access keys and closed budgets are entries of the ledger: nobody else can add or undo them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

import holdfast as hf
from holdfast.ledger import keys
from holdfast.ledger.accounts import Accounts
from holdfast.ledger.keys import find_key, require_valid

from .parts import NAME, query


def _keys(ledger: hf.Ledger) -> dict[str, hf.ledger.AccessKey]:
    return {key.id: key for key in hf.ledger.list_keys(ledger, NAME)}


def test_a_key_is_found_by_its_text_alone(ledger: hf.Ledger) -> None:
    text = hf.ledger.add_key(ledger, NAME, "ada")
    found = find_key(ledger.hasher(), _keys(ledger), text)
    assert (found.analyst, found.role) == ("ada", "analyst")
    last = "A" if text[-1] != "A" else "B"
    for wrong in ("", "hf-", text[:-1], text[:-1] + last, text.upper(), f"{text} ", text + "x"):
        with pytest.raises(hf.errors.AccessDenied, match="not valid here"):
            find_key(ledger.hasher(), _keys(ledger), wrong)


def test_the_database_never_holds_the_secret(ledger: hf.Ledger) -> None:
    text = hf.ledger.add_key(ledger, NAME, "ada")
    secret = text.split("-", 2)[2]
    assert all(secret not in str(entry) for entry in ledger.entries())


def test_a_key_of_another_ledger_is_unknown(ledger: hf.Ledger, tmp_path: object) -> None:
    other = hf.Ledger(f"sqlite:///{tmp_path}/other.db", home=f"{tmp_path}/other-home")
    other.create_budget(NAME, hf.Budget(1.0))
    text = hf.ledger.add_key(other, NAME, "eve", role="owner")
    with pytest.raises(hf.errors.AccessDenied):
        find_key(ledger.hasher(), _keys(other), text)


def test_a_revoked_key_is_refused_by_every_process(address: str, ledger: hf.Ledger) -> None:
    text = hf.ledger.add_key(ledger, NAME, "ada")
    key = find_key(ledger.hasher(), _keys(ledger), text)
    hf.ledger.revoke_key(hf.Ledger(address), NAME, key.id)
    with pytest.raises(hf.errors.AccessDenied):
        find_key(ledger.hasher(), _keys(ledger), text)
    with pytest.raises(hf.errors.AccessDenied):
        require_valid(_keys(ledger), key.id)


def test_an_expired_key_is_refused_and_cannot_be_rotated(ledger: hf.Ledger) -> None:
    text = hf.ledger.add_key(ledger, NAME, "ada", days=1e-9)
    with pytest.raises(hf.errors.AccessDenied):
        find_key(ledger.hasher(), _keys(ledger), text)
    with pytest.raises(hf.errors.AccessDenied):
        hf.ledger.rotate_key(ledger, NAME, text.split("-")[1])


def test_a_rotated_key_lives_on_for_the_overlap_only(ledger: hf.Ledger) -> None:
    old = hf.ledger.add_key(ledger, NAME, "ada", days=30)
    old_id = old.split("-")[1]
    new = hf.ledger.rotate_key(ledger, NAME, old_id, overlap_hours=2)
    new_id = new.split("-")[1]
    keys, now = _keys(ledger), datetime.now(UTC)
    assert (
        find_key(ledger.hasher(), keys, old).analyst
        == find_key(ledger.hasher(), keys, new).analyst
        == "ada"
    )
    assert keys[old_id].is_valid(now + timedelta(hours=1.9))
    assert not keys[old_id].is_valid(now + timedelta(hours=2.1))
    assert keys[new_id].is_valid(now + timedelta(days=29.9))
    assert not keys[new_id].is_valid(now + timedelta(days=30.1))  # no longer than the old one
    with pytest.raises(hf.errors.InvalidInput, match="was replaced before"):
        hf.ledger.rotate_key(ledger, NAME, old_id)
    newest = hf.ledger.rotate_key(ledger, NAME, new_id, days=100)  # as the owner chooses
    assert _keys(ledger)[newest.split("-")[1]].is_valid(now + timedelta(days=99))
    # With a key, all keys that replaced it are revoked.
    hf.ledger.revoke_key(ledger, NAME, old_id)
    for text in (old, new, newest):
        with pytest.raises(hf.errors.AccessDenied):
            find_key(ledger.hasher(), _keys(ledger), text)
    with pytest.raises(hf.errors.AccessDenied):
        hf.ledger.rotate_key(ledger, NAME, old_id, overlap_hours=1000)


def test_no_clock_decides_whether_a_revoked_key_is_valid(ledger: hf.Ledger) -> None:
    text = hf.ledger.add_key(ledger, NAME, "ada", days=None)
    hf.ledger.revoke_key(ledger, NAME, text.split("-")[1])
    (key,) = hf.ledger.list_keys(ledger, NAME)
    assert not key.is_valid(datetime.now(UTC) - timedelta(days=1))


def test_an_id_is_never_used_twice(ledger: hf.Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter(["0" * 16, "0" * 16, "1" * 16])
    monkeypatch.setattr(keys.secrets, "token_hex", lambda size: next(ids))
    for name in ("ada", "bob"):
        hf.ledger.add_key(ledger, NAME, name)
    assert [key.id for key in hf.ledger.list_keys(ledger, NAME)] == ["0" * 16, "1" * 16]


def test_a_transaction_under_a_guard_that_fails_does_nothing(ledger: hf.Ledger) -> None:
    def check(transaction: object) -> None:
        raise hf.errors.AccessDenied("made up")

    before = ledger.verify()
    with ledger.guarded(check):
        for act in (
            lambda: ledger.raise_budget(NAME, hf.Budget(5.0)),
            lambda: ledger.close_budget(NAME, reason="x"),
            lambda: ledger.create_budget("ward-8", hf.Budget(1.0)),
            lambda: hf.ledger.add_key(ledger, NAME, "eve", role="owner"),
            ledger.entries,
        ):
            with pytest.raises(hf.errors.AccessDenied):
                act()
    assert ledger.verify() == before


def test_books_that_are_being_read_again_are_no_hint(
    ledger: hf.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the entries would make a valid key look unknown."""
    hf.ledger.add_key(ledger, NAME, "ada")
    assert ledger.last_known(NAME) is not None
    seen, enter = [], Accounts.enter

    def watched(books: Accounts, entry: object) -> None:
        enter(books, entry)
        seen.append(ledger.last_known(NAME))

    monkeypatch.setattr(Accounts, "enter", watched)
    ledger.verify()
    assert seen[:2] == [None, None]  # then the entries are added up once more, to compare
    assert len(ledger.last_known(NAME).keys) == 1


def test_removing_a_revocation_from_the_database_is_noticed(address: str) -> None:
    ledger = hf.Ledger(address)
    ledger.create_budget(NAME, hf.Budget(1.0), queries=10)
    text = hf.ledger.add_key(ledger, NAME, "ada")
    hf.ledger.revoke_key(ledger, NAME, text.split("-")[1])
    ledger.close()
    driver = address.replace("postgresql:", "postgresql+psycopg:")
    with sa.create_engine(driver, poolclass=sa.NullPool).begin() as connection:
        connection.execute(sa.text("DELETE FROM holdfast_entries WHERE kind = 'revoke'"))
    with pytest.raises(hf.errors.TamperedLedger):
        hf.ledger.list_keys(hf.Ledger(address), NAME)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"role": "root"}, "role='root'"),
        ({"days": 0}, "days=0"),
        ({"days": float("nan")}, "days=nan"),
        ({"analyst": "a\nb"}, "analyst="),
        ({"analyst": "oidc:eve"}, "are those of tokens"),
        ({"dataset": "ward-8"}, "no budget for the data set 'ward-8'"),
    ],
)
def test_wrong_arguments_of_a_key_are_named(
    ledger: hf.Ledger, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(hf.errors.InvalidInput, match=message):
        hf.ledger.add_key(ledger, **{"dataset": NAME, "analyst": "ada", **arguments})
    with pytest.raises(hf.errors.InvalidInput, match="no key 'beef'"):
        hf.ledger.revoke_key(ledger, NAME, "beef")


def test_a_closed_budget_answers_only_what_is_recorded(
    ledger: hf.Ledger, model: hf.Certified
) -> None:
    predictor = hf.PrivatePredictor(model, ledger)
    first = predictor.ask(query(1), analyst="ada")
    status = ledger.close_budget(NAME, reason="the study has ended")
    assert status.closed == "the study has ended"
    assert (status.remaining, status.answers_left, status.spent) == (0.0, 0, 0.1)
    again = hf.PrivatePredictor(model, hf.Ledger(ledger.address))
    assert again.ask(query(1), analyst="ada").label == first.label
    for each in (predictor, again):
        with pytest.raises(hf.BudgetExhausted, match="was closed .reason: the study has ended"):
            each.ask(query(2), analyst="ada")
    with pytest.raises(hf.errors.InvalidInput, match="closed for good"):
        ledger.raise_budget(NAME, hf.Budget(5.0))
    with pytest.raises(hf.errors.InvalidInput, match="closed for good"):
        ledger.close_budget(NAME, reason="again")
    with pytest.raises(hf.errors.InvalidInput, match="has a budget already"):
        ledger.create_budget(NAME, hf.Budget(1.0))


def test_the_reason_of_a_raise_is_kept(ledger: hf.Ledger) -> None:
    ledger.raise_budget(NAME, hf.Budget(2.0), reason="agreed by the board")
    assert '"reason": "agreed by the board"' in ledger.entries()[-1].about
    assert hf.Ledger(ledger.address).status(NAME).budget == hf.Budget(2.0)
