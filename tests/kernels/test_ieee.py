"""Threads in a different floating-point mode are detected before they process a record."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.kernels import require_ieee


@pytest.fixture
def flushing() -> Iterator[None]:
    """Flush denormal numbers to 0 in this thread and in threads that it starts."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormal numbers")
    yield
    torch.set_flush_denormal(False)


def test_the_ordinary_mode_is_accepted() -> None:
    require_ieee()


@pytest.mark.usefixtures("flushing")
def test_flushed_denormals_are_found() -> None:
    with pytest.raises(hf.errors.UnsoundBounds, match="sets denormal numbers to 0"):
        require_ieee()


@pytest.mark.usefixtures("flushing")
def test_nothing_is_trained_or_certified_in_such_a_thread() -> None:
    x, y = torch.randn(10, 2), torch.arange(10) % 2
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(hf.errors.UnsoundBounds, match=r"torch.set_flush_denormal\(False\)"):
        hf.train(model, x, y, hf.Recipe(batch_size=10), max_distance=1, progress=False)
    torch.set_flush_denormal(False)
    certified = hf.train(model, x, y, hf.Recipe(batch_size=10), max_distance=1, progress=False)
    torch.set_flush_denormal(True)
    for certify in (certified.certify, certified.certify_constant_work):
        with pytest.raises(hf.errors.UnsoundBounds, match="denormal"):
            certify(x)


def test_another_rounding_mode_is_found() -> None:
    """Another rounding mode is detected (in a separate thread, so that no other test rounds up)."""
    import ctypes

    upward = 0x800  # FE_UPWARD on x86
    library = ctypes.CDLL(None)
    found: list[str] = []

    def work() -> None:
        if library.fesetround(upward) != 0:
            found.append("cannot be set")
            return
        try:
            require_ieee()
            found.append("not found")
        except hf.errors.UnsoundBounds as error:
            found.append(str(error))
        finally:
            library.fesetround(0)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if found == ["cannot be set"]:
        pytest.skip("the rounding mode cannot be set here")
    assert "does not round to nearest" in found[0]
