"""DP-SGD with Opacus: gradients are clipped per record, and the budget is kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.layers.initial import make_model
from holdfast.planning import DpSgdSettings, student_accuracy, train_dpsgd, ways


def _records(count: int = 40, width: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, width)
    return x, (x[:, 0] > 0).long()


def _clipped_step(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, settings: DpSgdSettings
) -> dict[str, torch.Tensor]:
    """Take one step of DP-SGD without noise by its definition, record by record."""
    totals = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for i in range(len(x)):
        model.zero_grad()
        logits = model(x[i : i + 1])
        one = logits.shape[1] == 1
        loss = (
            nn.BCEWithLogitsLoss()(logits[:, 0], y[i : i + 1].float())
            if one
            else nn.CrossEntropyLoss()(logits, y[i : i + 1])
        )
        loss.backward()
        gradients = {name: value.grad.clone() for name, value in model.named_parameters()}
        norm = torch.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        for name, gradient in gradients.items():
            totals[name] += gradient * min(1.0, settings.clip / float(norm))
    return {
        name: value.detach() - settings.learning_rate * totals[name] / len(x)
        for name, value in model.named_parameters()
    }


@pytest.mark.parametrize("outputs", [1, 2])
def test_each_record_is_clipped_by_itself(outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are clipped per record, for one and for two outputs.

    Opacus multiplies losses by factors of shape (records,). A loss of shape (records, 1) would
    silently be broadcast to a square matrix, with neither learning nor privacy.
    """
    monkeypatch.setattr(ways, "_noise", lambda *given: 0.0)
    monkeypatch.setattr("opacus.PrivacyEngine.get_epsilon", lambda *given: 0.5)
    x, y = _records()
    model, settings = (
        make_model("mlp:7", 5, outputs, 0),
        DpSgdSettings(epochs=1, batch=len(x), learning_rate=3.0, clip=0.2),
    )
    trained, _ = train_dpsgd(model, x, y, settings, hf.Budget(1.0, 1e-5), seed=0)
    for name, expected in _clipped_step(model, x, y, settings).items():
        torch.testing.assert_close(trained.state_dict()[name], expected, rtol=1e-4, atol=1e-6)


def test_the_budget_is_kept_and_nothing_else_is_touched() -> None:
    x, y = _records(400)
    model = make_model("linear-box", 5, 1, 0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    settings, budget = (
        DpSgdSettings(epochs=3, batch=100, learning_rate=2.0, clip=1.0),
        hf.Budget(8.0, 1e-3),
    )
    first, spent = train_dpsgd(model, x, y, settings, budget, seed=1)
    again, _ = train_dpsgd(model, x, y, settings, budget, seed=1)
    other, _ = train_dpsgd(model, x, y, settings, budget, seed=2)
    assert 0.9 * budget.epsilon < spent <= budget.epsilon
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(
        torch.equal(again.state_dict()[name], value) for name, value in first.state_dict().items()
    )
    assert not torch.equal(other.state_dict()["0.weight"], first.state_dict()["0.weight"])
    assert float((ways.predict(first, x) == y).double().mean()) > 0.8


def test_a_student_learns_what_it_is_told() -> None:
    x, y = _records(300)
    assert student_accuracy(x[:100], y[:100], x[100:], y[100:]) > 0.9
    assert student_accuracy(x[:100], 1 - y[:100], x[100:], y[100:]) < 0.1
    told_one = student_accuracy(x[:100], torch.ones(100, dtype=torch.int64), x[100:], y[100:])
    assert told_one == float(y[100:].double().mean())
