"""Where randomness comes from: the operating system. A seeded source exists for tests and simulations only."""

from __future__ import annotations

import hashlib
import secrets
from typing import Protocol

WIDTH = 16
"""Bytes in one draw: 128 bits."""


class Entropy(Protocol):
    """Uniform whole numbers of 128 bits."""

    def draw(self) -> int:
        """A fresh uniform whole number from 0 to 2^128 - 1."""


class SystemEntropy:
    """The operating system's generator."""

    def draw(self) -> int:
        return int.from_bytes(secrets.token_bytes(WIDTH), "little")


class SeededEntropyForTests:
    """Repeatable numbers. Answers drawn from it are NOT private: whoever knows the seed knows the noise."""

    def __init__(self, seed: int) -> None:
        self._key = seed.to_bytes(16, "little")
        self._count = 0

    def draw(self) -> int:
        self._count += 1
        digest = hashlib.blake2b(self._count.to_bytes(16, "little"), digest_size=WIDTH, key=self._key)
        return int.from_bytes(digest.digest(), "little")


SYSTEM = SystemEntropy()
