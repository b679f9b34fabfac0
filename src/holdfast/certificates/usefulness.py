"""Usefulness: recognise labels that are certified easily because they say nothing.

A model that gives every query the same label is perfectly stable, and as accurate as the commonest
label is common. Everything here is NOT private and for the owner.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import warn

_NEARLY_ALL = 0.98
NO_BETTER = 0.005
"""An accuracy that exceeds the share of the commonest label by less is no better than it."""

_RARE = 0.2  # the share of all other classes, below which rows of the commonest are dropped first
_BY_CLASS = 0.1  # of balanced accuracy above that of guessing, from which labels are of use
_NOTHING = "Certified shares mean nothing then. What to try: "
_ADVICE_FOR_A_HEAD = (
    _NOTHING + "a logarithmic scale for amounts and counts (log = true in the schema); ranges that "
    "fit the usual values; whitening with public rows; a larger budget, fewer queries or a larger "
    "travel"
)
_ADVICE_FOR_A_NETWORK = (
    _NOTHING + "a linear head (train_linear, --model linear) first, which needs no choice of "
    "steps; else whitening with public rows, one or two steps, and several learning rates"
)
_ADVICE_IF_RARE = (
    _NOTHING + "drop rows of the commoner class by a public rule, before training "
    "(docs/rare-classes.md)"
)


def why_useless(
    labels: Tensor, right: Tensor | None = None, names: Sequence[str] = (), network: bool = False
) -> str | None:
    """Return why the labels of some queries are of little use, and what to try, or None.

    Args:
        labels: The labels that a model gives.
        right: The right answers, if they are known.
        names: The names of the classes, if they have names.
        network: Whether the model is a network, which needs other advice than a head.
    """
    advice = _ADVICE_FOR_A_NETWORK if network else _ADVICE_FOR_A_HEAD
    if not len(labels):
        return None
    given, share = _commonest(labels)
    name = names[given] if names else str(given)
    if right is None:
        if share >= _NEARLY_ALL and len(labels) > 1:
            return f"the model gives the label {name} to {share:.1%} of the queries. {advice}"
        return None
    expected, common = _commonest(right)
    accuracy = float((labels == right).double().mean())
    usual = names[expected] if names else str(expected)
    if common == 1.0 or accuracy > common + NO_BETTER:
        return None
    by_class = [(labels == right)[right == each].double().mean() for each in set(right.tolist())]
    balanced = float(torch.stack(by_class).mean())
    if balanced > 1.0 / max(2, len(names)) + _BY_CLASS:
        return None  # it tells the classes apart, at another threshold than accuracy asks for
    text = (
        f"accuracy {accuracy:.3f} is no better than always answering {usual}, which is right for "
        f"{common:.3f}"
    )
    if share >= _NEARLY_ALL:
        text += f"; the model gives the label {name} to {share:.1%}"
    text += f"; balanced accuracy {balanced:.3f}"
    return f"{text}. {_ADVICE_IF_RARE if common > 1.0 - _RARE else advice}"


def warn_if_useless(
    labels: Tensor,
    right: Tensor | None = None,
    names: Sequence[str] = (),
    network: bool = False,
) -> None:
    """Warn the owner of labels that are of little use, with what to try. NOT private."""
    why = why_useless(labels, right, names, network)
    if why is not None:
        warn(f"NOT private: {why}")


def warn_after_training(labels: Tensor, right: Tensor, names: Sequence[str], network: bool) -> None:
    """Warn the owner of a model that says nothing about its own records. NOT private."""
    if len(right) and len(set(right.tolist())) == 1:
        count = "the only record is" if len(right) == 1 else f"all {len(right):,} records are"
        warn(
            f"NOT private: {count} of the class {names[int(right[0])]}, so there is nothing to "
            "learn: train on records of every class"
        )
    else:
        warn_if_useless(labels, right, names, network)


def _commonest(labels: Tensor) -> tuple[int, float]:
    """Return the commonest label and its share."""
    counts = torch.bincount(labels)
    return int(counts.argmax()), float(counts.max()) / len(labels)
