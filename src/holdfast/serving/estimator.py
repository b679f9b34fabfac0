"""HoldfastClassifier: the scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from ..accounting import Budget
from ..arrays import as_batch, refuse_text_columns
from ..errors import InvalidInput, warn
from ..heads.recipe import LinearRecipe
from ..heads.training import train_linear
from ..layers.initial import make_model, zero_output
from ..ledger import Ledger
from ..mechanisms import Mechanism, SparseVector
from ..models import CertifiedModel
from ..networks.recipe import Recipe
from ..networks.training import train, train_ensemble
from ..preprocessing import Preprocessing
from ..records import Dataset
from ..relations import Neighbours
from .predictor import PrivatePredictor
from .statement import privacy_statement


def validated(estimator: Any, X: Any, **options: Any) -> Any:
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


_NESTED = "recipe__"
_MAX_DISTANCE = 50  # of networks


class HoldfastClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A certified classifier whose `predict` is private and charged to a budget.

    `predict` asks an hf.PrivatePredictor, which charges the budget of `dataset` in the ledger.

    Args:
        model: "linear", a convex head (hf.train_linear); or a network, trained with boxes
            (hf.train): "linear-box", "mlp:100" or "mlp:100,50", which initially answer exactly 0
            (hf.zero_output), or a function of (inputs, outputs, seed) that makes a torch module.
        recipe: An hf.LinearRecipe for a head, an hf.Recipe for a network. By default, a head is
            trained as `records`, `budget` and `queries` suggest (hf.LinearRecipe.for_budget), and a
            network with two full-batch steps. `recipe__travel` changes hf.LinearRecipe().
        records: About how many records there are (per member), or persons if `fit` is given
            persons: a public number, for the default recipe.
        budget: The total budget that the default recipe of a head is chosen for. None: that of
            `dataset` in the ledger or, without a ledger, hf.Budget(1.0, 1e-5).
        queries: The number of queries that the budget has to last for. None: that of the ledger's
            budget or, without one, 100.
        neighbours: As for hf.train.
        max_records_per_person: As for hf.train; needs `fit(..., persons=...)`.
        max_distance: The largest distance. None: 50 for a network, no limit for a head.
        members: The number of models; more than one trains an ensemble.
        classes: All labels, in order; required unless the preprocessing names them. The set of
            labels is public and is never read off y: a label that only one record has would
            reveal that record.
        preprocessing: As for hf.train.
        dataset: The owner's name for the private data.
        ledger: An address or an hf.Ledger; required by `predict`.
        analyst: The name under which `predict` asks.
        mechanism: As for hf.PrivatePredictor.

    Raises:
        InvalidInput: By `fit` and `predict`, if a parameter does not fit; scikit-learn sets
            parameters without checks.

    Example:
        >>> import holdfast as hf
        >>> ledger = hf.Ledger("sqlite:///clinic.db", home="keys")
        >>> status = ledger.create_budget("clinic", hf.Budget(9.0), queries=10)
        >>> classifier = hf.HoldfastClassifier(
        ...     classes=["no", "yes"], records=100, dataset="clinic", ledger=ledger
        ... )
        >>> classifier.fit([[-1.0], [1.0]] * 50, ["no", "yes"] * 50).predict([[1.0]]).shape
        (1,)
    """

    def __init__(
        self,
        model: str | Callable[[int, int, int], nn.Module] = "linear",
        *,
        recipe: Recipe | LinearRecipe | None = None,
        records: int = 1000,
        budget: Budget | None = None,
        queries: int | None = None,
        neighbours: Neighbours | str = "add_remove",
        max_records_per_person: int | None = None,
        max_distance: int | None = None,
        members: int = 1,
        classes: Iterable[Any] | None = None,
        preprocessing: Preprocessing | None = None,
        dataset: str = "default",
        ledger: str | Ledger | None = None,
        analyst: str = "owner",
        mechanism: Mechanism | None = None,
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.records = records
        self.budget = budget
        self.queries = queries
        self.neighbours = neighbours
        self.max_records_per_person = max_records_per_person
        self.max_distance = max_distance
        self.members = members
        self.classes = classes
        self.preprocessing = preprocessing
        self.dataset = dataset
        self.ledger = ledger
        self.analyst = analyst
        self.mechanism = mechanism

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters; if `deep`, also those of the recipe, such as `recipe__clip`."""
        params: dict[str, Any] = super().get_params(deep=deep)
        if deep:
            with suppress(InvalidInput):  # `records` may hold anything until `fit` checks it
                recipe = self._starting_recipe()
                if isinstance(recipe, Recipe | LinearRecipe):
                    params |= {f"{_NESTED}{key}": value for key, value in recipe.as_dict().items()}
        return params

    def set_params(self, **params: Any) -> HoldfastClassifier:
        """Set parameters.

        Parameters of the recipe, such as `recipe__clip`, create a new recipe, since recipes are
        immutable.
        """
        nested = {
            name.removeprefix(_NESTED): params.pop(name)
            for name in list(params)
            if name.startswith(_NESTED)
        }
        super().set_params(**params)
        if nested:
            recipe = self._starting_recipe()
            unknown = sorted(nested.keys() - recipe.as_dict().keys())
            if unknown:
                raise InvalidInput(
                    f"recipe has no {unknown[0]!r}: expected one of {', '.join(recipe.as_dict())}"
                )
            self.recipe = replace(recipe, **nested)
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # answers are drawn at random
        # On a hundred records, privacy requires more noise than signal.
        tags.classifier_tags.poor_score = True
        return tags

    def fit(self, X: Any, y: Any, ids: Any = None, persons: Any = None) -> HoldfastClassifier:
        """Train and certify the model.

        This spends nothing: the result stays with the owner until `predict` is called.

        Args:
            X: The private features, one row per record.
            y: The labels, each one of `classes`.
            ids: One unique integer or string per record, as for hf.train.
            persons: The owner of each record, as for hf.train: privacy is then per person.

        Returns:
            The fitted estimator.

        Raises:
            InvalidInput: If a parameter or a record is not valid.
        """
        check_preprocessing(self.preprocessing)
        X, y, classes = self._records(X, y)
        data = Dataset(
            X,
            y,
            name=self.dataset,
            ids=ids,
            persons=persons,
            max_records_per_person=self.max_records_per_person,
            preprocessing=self.preprocessing,
            classes=None if self._has_named_classes() else len(classes),
        )
        settings: dict[str, Any] = {"neighbours": self.neighbours, "progress": False}
        if self.model == "linear":
            self.certified_: CertifiedModel = train_linear(
                data,
                self._head_recipe(len(classes), data.relation(self.neighbours)),
                max_distance=self.max_distance,
                members=self.members,
                **settings,
            )
        else:
            recipe = self._starting_recipe()
            if not isinstance(recipe, Recipe):
                raise InvalidInput(f"recipe={recipe!r}: expected an hf.Recipe for this model")
            reach = self.max_distance
            settings["max_distance"] = _MAX_DISTANCE if reach is None else reach
            make = partial(make_network, self.model, recipe, self._inputs(), len(classes))
            if self.members == 1:
                self.certified_ = train(make(0), data, recipe, **settings)
            else:
                self.certified_ = train_ensemble(
                    make, data, recipe, members=self.members, **settings
                )
        self.classes_ = classes
        return self

    def _starting_recipe(self) -> Recipe | LinearRecipe:
        """Return the recipe, or the one that settings such as `recipe__clip` start from."""
        if self.recipe is not None:
            return self.recipe
        if self.model == "linear":
            return LinearRecipe(batch_size=self.records)
        return Recipe(epochs=2, learning_rate=1.0, clip=0.1, batch_size=self.records)

    def _head_recipe(self, classes: int, relation: Neighbours | str) -> LinearRecipe:
        """Return the recipe of a head; by default one for the planned budget and queries."""
        if self.recipe is not None:
            return checked_head_recipe(self.recipe)
        goal = planned_budget(self.ledger, self.dataset, self.budget, self.queries)
        return LinearRecipe.for_budget(
            records=self.records,
            features=self._inputs(),
            classes=classes,
            budget=goal[0],
            queries=goal[1],
            neighbours=relation,
        )

    def predict(self, X: Any) -> NDArray[Any]:
        """Return private labels, charging each new one to the budget.

        If the same analyst asks the same query again, the same answer is returned free of charge.

        Args:
            X: One row per query.

        Returns:
            One of `classes` per query.

        Raises:
            BudgetExhausted: If the budget does not cover all new queries; then none is answered.
            InvalidInput: If there is no ledger, or the queries do not fit.
        """
        X = self._queries(X)
        predictor = self._predictor()
        if predictor.other_models_spent():
            warn(
                f"other models have also spent from the budget of {self.certified_.dataset!r}: "
                "every refit and every retrained model is charged to the same budget. Folds of a "
                "cross-validation need hf.records.HashKFold, and their scores are not private; "
                "choose settings on public data"
            )
        answers = predictor.ask_all(X, analyst=self.analyst)
        return np.asarray(self.classes_[[answer.index for answer in answers]])

    def predict_plain(self, X: Any) -> NDArray[Any]:
        """Return the model's own labels. NOT private: for the owner.

        Args:
            X: One row per query.
        """
        X = self._queries(X)
        return np.asarray(self.classes_[self.certified_.predict(X).numpy()])

    def statement(self) -> str:
        """Return the privacy statement of the answers, in Markdown."""
        check_is_fitted(self)
        return privacy_statement(
            self.certified_, self._predictor().ledger.status(self.certified_.dataset)
        )

    def _records(self, X: Any, y: Any) -> tuple[Any, Any, NDArray[Any]]:
        """Return the features, the labels, and all classes in order.

        Labels are names if the preprocessing names the classes, otherwise numbers.
        """
        if self._is_tabular():
            self.n_features_in_ = len(self.preprocessing.columns)  # type: ignore[union-attr]
            y = np.asarray(y)
        else:
            X, y = validated(self, X, y=y)
        check_classification_targets(y)
        classes = self._classes()
        if self._has_named_classes():
            return X, y.tolist(), classes
        return X, label_numbers(y, classes), classes

    def _classes(self) -> NDArray[Any]:
        return declared_classes(self.classes, self.preprocessing)

    def _queries(self, X: Any) -> Any:
        check_is_fitted(self)
        if not self._is_tabular():
            return validated(self, X, reset=False)
        if as_batch(X, 1)[1]:
            raise InvalidInput("X is a single record: expected a table of records")
        return X

    def _has_named_classes(self) -> bool:
        """Return whether the preprocessing names the classes."""
        return self.preprocessing is not None and bool(self.preprocessing.classes)

    def _is_tabular(self) -> bool:
        """Return whether X is a table whose columns the preprocessing checks."""
        return self.preprocessing is not None and bool(self.preprocessing.columns)

    def _inputs(self) -> int:
        """Return the number of features that a model sees."""
        width = None if self.preprocessing is None else self.preprocessing.width
        return int(self.n_features_in_) if width is None else width

    def _predictor(self) -> PrivatePredictor:
        """Return the last predictor, or a new one if a parameter has changed since."""
        settings = (self.certified_, self.ledger, self.mechanism)
        if self in _PREDICTORS and _PREDICTORS[self][0] == settings:
            return _PREDICTORS[self][1]
        if self.ledger is None:
            raise InvalidInput(
                "predict is private and needs a ledger: "
                "use HoldfastClassifier(ledger='sqlite:///ledger.db'), with a budget for "
                f"{self.certified_.dataset!r}; predict_plain gives the owner the model's own labels"
            )
        if isinstance(self.mechanism, SparseVector):
            raise InvalidInput(
                "SparseVector may answer no label at all, which predict does not support; "
                "use hf.PrivatePredictor"
            )
        ledger = self.ledger if isinstance(self.ledger, Ledger) else Ledger(self.ledger)
        predictor = PrivatePredictor(self.certified_, ledger, mechanism=self.mechanism)
        _PREDICTORS[self] = (settings, predictor)
        return predictor


_PREDICTORS: WeakKeyDictionary[HoldfastClassifier, tuple[Any, PrivatePredictor]] = (
    WeakKeyDictionary()
)
"""The predictors of fitted estimators, kept outside so that pickles do not hold open ledgers."""
