"""The settings of the estimator: checks, declared classes and the planned budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data
from torch import Tensor, nn

from ..accounting import Budget
from ..arrays import refuse_text_columns
from ..errors import InvalidInput
from ..heads import LinearRecipe
from ..layers.initial import make_model, zero_output
from ..ledger import Ledger
from ..models import CertifiedModel, train, train_ensemble
from ..preprocessing import Preprocessing
from ..training import Recipe


def validated(estimator: Any, X: Any, **options: Any) -> Any:  # noqa: N803 (scikit-learn's name)
    """Return X, and y if it is given, as scikit-learn checks them; columns of text are named."""
    refuse_text_columns(X, "X")
    return validate_data(estimator, X, **options)


def check_preprocessing(rules: Any) -> None:
    """Raise InvalidInput unless `rules` is an hf.Preprocessing or None."""
    if not isinstance(rules, Preprocessing | None):
        raise InvalidInput(f"preprocessing={rules!r}: expected an hf.Preprocessing or None")


def checked_head_recipe(recipe: Any) -> LinearRecipe:
    """Return the recipe of a head; raise InvalidInput if it is not one."""
    if not isinstance(recipe, LinearRecipe):
        raise InvalidInput(
            f"recipe={recipe!r}: expected an hf.LinearRecipe for model='linear'; "
            "an hf.Recipe is for networks, such as model='linear-box'"
        )
    return recipe


def declared_classes(classes: Iterable[Any] | None, rules: Preprocessing | None) -> NDArray[Any]:
    """Return all labels: those that the preprocessing names, or those declared."""
    named = np.asarray(rules.classes) if rules is not None and rules.classes else None
    if named is None and classes is None:
        raise InvalidInput(
            "classes=None: the set of labels is public and must not be read off "
            "the private records, where one record could add a label; "
            "list all of them: HoldfastClassifier(classes=[...])"
        )
    try:
        given = None if classes is None else np.asarray(list(classes))
    except TypeError:
        raise InvalidInput(f"classes={classes!r}: expected the list of all labels") from None
    if named is not None and given is not None and named.tolist() != given.astype(str).tolist():
        raise InvalidInput(
            f"classes={given.tolist()}, but the schema names {named.tolist()}: "
            "expected the same classes in the same order"
        )
    found = given if named is None else named
    assert found is not None
    if found.ndim != 1 or len(set(found.tolist())) < max(2, len(found)):
        raise InvalidInput(f"classes={found.tolist()}: expected at least 2 classes, each once")
    return found


def label_numbers(y: NDArray[Any], classes: NDArray[Any]) -> Tensor:
    """Return the place of each label among the declared classes."""
    places = {label: number for number, label in enumerate(classes.tolist())}
    undeclared = [label for label in y.tolist() if label not in places]
    if undeclared:
        raise InvalidInput(
            f"y holds {undeclared[0]!r}, which is not in classes={classes.tolist()}; "
            "list all labels in classes"
        )
    return torch.tensor([places[label] for label in y.tolist()])


def planned_budget(
    ledger: str | Ledger | None, dataset: str, budget: Budget | None, queries: int | None
) -> tuple[Budget, int]:
    """Return the budget and the number of queries that a default recipe is chosen for.

    What is not given is read from the ledger's budget for the data set, which is public.
    """
    if ledger is not None and (budget is None or queries is None):
        opened = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
        if dataset in opened.names():
            status = opened.status(dataset)
            budget = status.budget if budget is None else budget
            queries = status.queries if queries is None else queries
    return Budget(1.0, 1e-5) if budget is None else budget, 100 if queries is None else queries


def make_network(
    model: str | Callable[[int, int, int], nn.Module],
    recipe: Recipe,
    inputs: int,
    classes: int,
    member: int,
) -> nn.Module:
    """Return an untrained network; a named one initially answers exactly 0."""
    if recipe.loss == "binary_cross_entropy" and classes != 2:
        raise InvalidInput(
            f"loss='binary_cross_entropy' is for 2 classes, not {classes}; use loss='cross_entropy'"
        )
    outputs, seed = recipe.loss_function.outputs(classes), recipe.seed + member
    if isinstance(model, str):
        return zero_output(make_model(model, inputs, outputs, seed))
    return model(inputs, outputs, seed)


def train_networks(
    make: Callable[[int], nn.Module],
    members: int,
    x: Any,
    labels: Tensor,
    recipe: Recipe,
    settings: dict[str, Any],
) -> CertifiedModel:
    """Train one network, or an ensemble of them."""
    if members == 1:
        return train(make(0), x, labels, recipe, **settings)
    return train_ensemble(make, x, labels, recipe, members=members, **settings)
