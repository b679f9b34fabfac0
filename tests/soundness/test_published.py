"""Certificates are at least as tight as the published ones on the paper's blobs."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, vmap

import holdfast as hf
from holdfast.examples.demo import blobs, network

PUBLISHED = {1: 0.9947, 2: 0.9933, 5: 0.9867, 10: 0.9733, 20: 0.945, 50: 0.78}


def _certificate(name: str) -> hf.Certificate:
    data = blobs(name)
    recipe = hf.Recipe(epochs=4, learning_rate=2.0, decay=0.6, min_learning_rate=1e-3, clip=0.06)
    certified = hf.train(
        network(),
        data.x,
        data.y,
        recipe,
        neighbours="replace",
        distances=list(PUBLISHED),
        progress=False,
    )
    return certified.certify(data.query_x)


def test_close_blobs(figures) -> None:
    certificate = _certificate("close")
    shares = {k: certificate.share(rank) for rank, k in enumerate(PUBLISHED, start=1)}
    figures["certified share, close blobs, replace"] = ", ".join(
        f"k={k}: {share:.4f}" for k, share in shares.items()
    )
    for k, share in shares.items():
        assert round(share, 4) >= PUBLISHED[k], f"k = {k}"


def test_far_blobs() -> None:
    assert _certificate("far").share(len(PUBLISHED)) == pytest.approx(1.0)


def test_rounding_gradients_leaves_accuracy_unchanged(figures) -> None:
    """Plain torch with clipped but unrounded per-record gradients predicts the same labels."""
    data = blobs("close")
    recipe = hf.Recipe(
        epochs=4, learning_rate=2.0, decay=0.6, min_learning_rate=1e-3, clip=0.06, batch_size=3000
    )
    certified = hf.train(network(), data.x, data.y, recipe, max_distance=1, progress=False)
    model = network()

    def loss(parameters, x, y):
        return recipe.loss_function.value(
            functional_call(model, parameters, x[None]), y[None]
        ).sum()

    parameters = {name: value.detach() for name, value in model.named_parameters()}
    for step in range(recipe.steps):
        gradients = vmap(grad(loss), (None, 0, 0))(parameters, data.x, data.y)
        rate = recipe.learning_rate_at(step) / recipe.batch_size
        parameters = {
            name: value - rate * gradients[name].clamp(-recipe.clip, recipe.clip).sum(0)
            for name, value in parameters.items()
        }
    with torch.no_grad():
        plain = functional_call(model, parameters, data.query_x).argmax(1)
    ours = certified.predict(data.query_x)
    accuracies = [float((labels == data.query_y).double().mean()) for labels in (plain, ours)]
    figures["accuracy without and with rounding to clip/4096, close blobs"] = " and ".join(
        f"{value:.4f}" for value in accuracies
    )
    assert float((plain == ours).double().mean()) > 0.997
