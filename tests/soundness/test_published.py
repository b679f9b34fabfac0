"""At least as tight as the published method, on the paper's blobs."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.data import blobs
from holdfast.experiments.demo import network

PUBLISHED = {1: 0.9947, 2: 0.9933, 5: 0.9867, 10: 0.9733, 20: 0.945, 50: 0.78}


def _certificate(name: str) -> hf.Certificate:
    data = blobs(name)
    recipe = hf.Recipe(epochs=4, learning_rate=2.0, decay=0.6, min_learning_rate=1e-3, clip=0.06)
    certified = hf.train(network(), data.x, data.y, recipe, "replace", distances=list(PUBLISHED), progress=False)
    return certified.certify(data.test_x)


def test_close_blobs(figures) -> None:
    certificate = _certificate("close")
    shares = {k: certificate.share(rank) for rank, k in enumerate(PUBLISHED, start=1)}
    figures["certified share, close blobs, replace"] = ", ".join(f"k={k}: {share:.4f}" for k, share in shares.items())
    for k, share in shares.items():
        assert round(share, 4) >= PUBLISHED[k], f"k = {k}"


def test_far_blobs() -> None:
    assert _certificate("far").share(len(PUBLISHED)) == pytest.approx(1.0)
