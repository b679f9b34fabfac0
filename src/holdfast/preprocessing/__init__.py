"""Preprocessing: public rules that turn tables and features into what a model sees."""

from .rules import Preprocessing

__all__ = ["Preprocessing"]
