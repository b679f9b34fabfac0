"""What identifies a question must not change: recorded answers would be charged again.

The stored digests hold on every machine.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import holdfast as hf
from holdfast.ledger.key_store import keyed_hash
from holdfast.serving.predictor import PredictionRequest
from tests.ledger.parts import NAME, small_model


@pytest.mark.parametrize(
    ("mechanism", "expected"),
    [
        (hf.StableResponse(0.25), "e3ed6846951df97e"),
        (hf.BudgetedResponse(hf.Budget(1.0, 1e-5), queries=100), "4e49e776760b22e3"),
    ],
    ids=["stable", "budgeted"],
)
def test_the_hashes_of_a_request(
    mechanism: hf.mechanisms.Mechanism, expected: str, tmp_path: Path, monkeypatch
) -> None:
    ledger = hf.Ledger(f"sqlite:///{tmp_path}/ledger.db", home=tmp_path)
    ledger.create_budget(NAME, hf.Budget(2.0, 1e-4), queries=100, reserve=5e-5)
    model = replace(small_model(), run_id="0123456789abcdef" * 2)
    monkeypatch.setattr(hf.Ledger, "hasher", lambda _: partial(keyed_hash, bytes(range(32))))
    predictor = hf.PrivatePredictor(model, ledger, mechanism=mechanism)
    request = PredictionRequest([[0.5, -0.25], [-0.0, 1e-13]], "Ada", "key 7")
    features, _ = predictor.features_of(request.queries)
    asked = predictor._asked(features, request)
    text = repr((asked.analyst, asked.model, asked.session, asked.questions, asked.retriable))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == expected
    assert torch.equal(features[1], torch.zeros(2))
