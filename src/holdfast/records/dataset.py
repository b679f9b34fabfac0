"""Dataset: private records with their labels, and what tells whose they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypedDict, TypeVar

import numpy as np
from torch import Tensor

from ..arrays import as_features
from ..checks import check_integer, check_new_name
from ..errors import InvalidInput
from ..preprocessing import Preprocessing, read_records
from ..preprocessing.columns import category_name, class_numbers
from ..preprocessing.tables import column
from ..relations import Neighbours
from .ids import NO_OWNER

R = TypeVar("R")


class Chunk(NamedTuple):
    """Some rows as they were given; a single chunk if the records are in memory."""

    place: str  # for error messages
    label_place: str
    first: int  # the number of its first row, from 0
    x: Any
    y: Any
    ids: Any
    persons: Any


class Source(Protocol):
    """Where records come from: arrays in memory, or files."""

    @property
    def place(self) -> str:
        """What to call it in messages."""

    @property
    def count(self) -> int:
        """The number of records."""

    @property
    def in_parts(self) -> bool:
        """Whether records are read in parts, and kept in temporary files while training runs."""

    @property
    def has_ids(self) -> bool: ...
    @property
    def has_persons(self) -> bool: ...
    @property
    def owners(self) -> Any:
        """The owners of the records as they were given, or None if they are not in memory."""

    def record_shape(self) -> tuple[int, ...]:
        """Return the shape of one record, if no rules compute it."""

    def chunks(self, columns: Sequence[str] | None) -> Iterator[Chunk]:
        """Yield all records in order; `columns` are those of features, if rules name them."""


class ArraySource:
    """Records in memory."""

    place, in_parts = "x", False

    def __init__(self, x: Any, y: Any, ids: Any, persons: Any, label_place: str = "y") -> None:
        # Iterators can be read once only, and a data set may be used again.
        y, ids, persons = (
            list(each) if isinstance(each, Iterator) else each for each in (y, ids, persons)
        )
        if not isinstance(y, Iterable) or getattr(y, "ndim", 1) == 0 or isinstance(y, str | bytes):
            raise InvalidInput(f"y is a {type(y).__name__}: expected one label per record")
        self._chunk = Chunk("x", label_place, 0, x, y, ids, persons)
        self.has_ids, self.has_persons = ids is not None, persons is not None

    @property
    def count(self) -> int:
        return len(self._chunk.y)

    @property
    def owners(self) -> Any:
        return self._chunk.persons

    @cached_property
    def _shape(self) -> tuple[int, ...]:
        return tuple(as_features(self._chunk.x).shape[1:])

    def record_shape(self) -> tuple[int, ...]:
        return self._shape

    def chunks(self, columns: Sequence[str] | None) -> Iterator[Chunk]:
        yield self._chunk


class Columns(TypedDict, total=False):
    """What the short form of training may say about records beside x and y; see `Dataset`."""

    dataset: str
    ids: Iterable[Any] | None
    persons: Iterable[Any] | None
    max_records_per_person: int | None
    preprocessing: Preprocessing | None
    classes: int | Sequence[Any] | None


class Dataset:
    """Private records with their labels, and what tells whose they are.

    It is what `hf.train`, `hf.train_ensemble` and `hf.train_linear` take. Nothing is computed from
    the records here: only what contradicts itself is refused.

    Args:
        x: The private features, one row per record: a tensor, an array, or a table if
            `preprocessing` names columns.
        y: The labels, one per record: numbers from 0 on, or names if the classes have names.
        name: The owner's name for the private data; a budget in the ledger belongs to it.
        ids: One unique integer or string per record. Without it, the id of a record is a hash of
            its content.
        persons: The owner of each record, an integer or a string: privacy is then per person, and
            the recipe's batch size is a public number of persons. A person's records share a batch
            and a member.
        max_records_per_person: The most records of one person that are used; a hash of the records
            chooses them. None: all of them.
        preprocessing: Public rules that compute the features of x and of every query.
        classes: The number of classes, or their names in order. They are public and never read off
            y. None: the preprocessing names them, or the network has as many outputs.

    Raises:
        InvalidInput: If arguments contradict each other.

    Example:
        >>> import holdfast as hf
        >>> data = hf.Dataset([[-1.0], [1.0]] * 200, ["no", "yes"] * 200, classes=["no", "yes"])
        >>> recipe = hf.LinearRecipe(batch_size=400, travel=10.0)
        >>> head = hf.train_linear(data, recipe, progress=False)
        >>> head.class_names(head.predict([[1.0]]).tolist())[0]
        'yes'
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        *,
        name: str = "default",
        ids: Iterable[Any] | None = None,
        persons: Iterable[Any] | None = None,
        max_records_per_person: int | None = None,
        preprocessing: Preprocessing | None = None,
        classes: int | Sequence[Any] | None = None,
    ) -> None:
        self._read(
            ArraySource(x, y, ids, persons), name, max_records_per_person, preprocessing, classes
        )

    def _read(
        self,
        source: Source,
        name: str,
        max_records_per_person: int | None,
        preprocessing: Preprocessing | None,
        classes: int | Sequence[Any] | None,
    ) -> None:
        self.source, self.name = source, check_new_name("dataset", name)
        self.preprocessing = _checked_rules(preprocessing)
        self._numbers_are_indices = False
        if source.has_ids and source.has_persons:
            raise InvalidInput(
                "both ids and persons were given: with persons, records are assigned by their "
                "owner; leave out ids"
            )
        if max_records_per_person is not None:
            if not source.has_persons:
                raise InvalidInput(
                    f"max_records_per_person={max_records_per_person!r} needs persons=, the owner "
                    "of each record"
                )
            max_records_per_person = check_integer(
                "max_records_per_person", max_records_per_person, 1
            )
        self.max_records_per_person = max_records_per_person
        self.class_count, self.given_names = _classes(classes, preprocessing)

    @classmethod
    def parquet(
        cls,
        path: str | PathLike[str],
        *,
        label: str,
        columns: Sequence[str] | None = None,
        id: str | None = None,
        person: str | None = None,
        name: str = "default",
        max_records_per_person: int | None = None,
        preprocessing: Preprocessing | None = None,
        classes: int | Sequence[Any] | None = None,
    ) -> Dataset:
        """Return the records of a Parquet file, or of a folder of them.

        They are read in parts, so the table may be larger than memory. The result of training is
        the same, to the bit, as if all records were in memory.

        Args:
            path: A .parquet file, or a folder of them; all files must have the same columns.
            label: The column of labels.
            columns: The columns of features, in order; by default all others. A schema
                (`preprocessing=`) names its own, and an index that pandas wrote is left out.
            id: The column of unique ids, if there is one.
            person: The column of the records' owners, if privacy is per person.
            name: As for `Dataset`.
            max_records_per_person: As for `Dataset`.
            preprocessing: As for `Dataset`.
            classes: As for `Dataset`.

        Raises:
            InvalidInput: If a file cannot be read, or a column is missing.

        Example:
            >>> import holdfast as hf, pyarrow as pa, torch
            >>> from pyarrow import parquet
            >>> table = pa.table({"a": [-1.0, -0.9, 0.9, 1.0], "y": [0, 0, 1, 1]})
            >>> parquet.write_table(table, "records.parquet")
            >>> data = hf.Dataset.parquet("records.parquet", label="y")
            >>> recipe = hf.Recipe(clip=0.5, batch_size=4)
            >>> model, options = torch.nn.Linear(1, 2), {"max_distance": 2, "progress": False}
            >>> hf.train(model, data, recipe, **options).distances
            (1, 2)
        """
        from .parquet import ParquetFiles

        _special_columns(label, id, person, preprocessing)
        data = cls.__new__(cls)
        source = ParquetFiles(path, label, columns, id, person)
        data._read(source, name, max_records_per_person, preprocessing, classes)
        return data

    @classmethod
    def frame(
        cls,
        frame: Any,
        *,
        label: str,
        id: str | None = None,
        person: str | None = None,
        name: str = "default",
        max_records_per_person: int | None = None,
        preprocessing: Preprocessing | None = None,
        classes: int | Sequence[Any] | None = None,
    ) -> Dataset:
        """Return the records of a data frame of pandas or polars.

        Args:
            frame: The frame, with a column of labels.
            label: The column of labels.
            id: The column of unique ids, if there is one.
            person: The column of the records' owners, if privacy is per person.
            name: As for `Dataset`.
            max_records_per_person: As for `Dataset`.
            preprocessing: As for `Dataset`; without it, all other columns are features.
            classes: As for `Dataset`.

        Raises:
            InvalidInput: If a column is missing or used twice.

        Example:
            >>> import holdfast as hf, pandas as pd
            >>> frame = pd.DataFrame({"age": [30.0, 60.0] * 200, "stays": ["no", "yes"] * 200})
            >>> rules = hf.Preprocessing.ranges({"age": (0, 100)})
            >>> data = hf.Dataset.frame(
            ...     frame, label="stays", preprocessing=rules, classes=["no", "yes"]
            ... )
            >>> data.count
            400
        """
        library = type(frame).__module__.partition(".")[0]
        if library not in ("pandas", "polars") or type(frame).__name__ != "DataFrame":
            raise InvalidInput(
                f"frame is a {type(frame).__name__}: expected a data frame of pandas or polars"
            )
        names = list(frame.columns)
        special = _special_columns(label, id, person, preprocessing)
        twice = [each for each in names if names.count(each) > 1]
        wrong = [each for each in special if each not in names] or twice
        if wrong:
            raise InvalidInput(
                f"{wrong[0]!r}: expected one column of this name; the frame has {names}"
            )
        ids, persons = (None if each is None else _cells(frame[each]) for each in (id, person))
        x = frame
        if preprocessing is None or not preprocessing.columns:
            x = frame[[each for each in names if each not in special]]
        return cls(
            x,
            _cells(frame[label]),
            name=name,
            ids=ids,
            persons=persons,
            max_records_per_person=max_records_per_person,
            preprocessing=preprocessing,
            classes=classes,
        )

    @classmethod
    def csv(
        cls,
        path: str | PathLike[str],
        *,
        label: str,
        preprocessing: Preprocessing,
        id: str | None = None,
        person: str | None = None,
        name: str = "default",
        max_records_per_person: int | None = None,
        classes: int | Sequence[Any] | None = None,
    ) -> Dataset:
        """Return the records of a CSV file, read into memory by a schema.

        Args:
            path: The .csv file.
            label: The column of labels.
            preprocessing: The schema of its columns.
            id: The column of unique ids, if there is one.
            person: The column of the records' owners, if privacy is per person.
            name: As for `Dataset`.
            max_records_per_person: As for `Dataset`.
            classes: As for `Dataset`.

        Raises:
            InvalidInput: If the file cannot be read, a column is missing or used twice, or neither
                the schema nor `classes` names the classes.

        Example:
            >>> import holdfast as hf
            >>> with open("records.csv", "w") as file:
            ...     _ = file.write("age,stays\\n" + "30,no\\n60,yes\\n" * 200)
            >>> rules = hf.Preprocessing.ranges({"age": (0, 100)})
            >>> options = {"preprocessing": rules, "classes": ["no", "yes"]}
            >>> hf.Dataset.csv("records.csv", label="stays", **options)
            Dataset('default', 400 records)
        """
        _special_columns(label, id, person, preprocessing)
        if not isinstance(path, str | PathLike):
            raise InvalidInput(f"path={path!r}: expected the name of a .csv file")
        path = Path(path)
        table = read_records(path, preprocessing)
        ids, persons = (
            _named_cells(table, each, path, what) for each, what in ((id, "id"), (person, "owner"))
        )
        y = column(table, label, path)
        data = cls.__new__(cls)
        source = ArraySource(table, y, ids, persons, f"{path}, column {label!r}")
        data._read(source, name, max_records_per_person, preprocessing, classes)
        if not data.class_names:
            raise InvalidInput(
                f"{path}: cells of a CSV are texts; name the classes, in the schema or by classes="
            )
        return data

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {self.count:,} records)"

    @property
    def count(self) -> int:
        """The number of records."""
        return self.source.count

    @property
    def per_person(self) -> bool:
        """Whether the owners of the records are known."""
        return self.source.has_persons

    @property
    def persons(self) -> int | None:
        """The number of persons, if it is known without reading files."""
        owners = self.source.owners
        owners = owners.tolist() if hasattr(owners, "tolist") else owners
        return None if owners is None else len(set(owners))

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in order; empty if they have none."""
        declared = () if self.preprocessing is None else self.preprocessing.classes
        return self.given_names or declared

    @property
    def record_shape(self) -> tuple[int, ...]:
        """The shape of one record, as the model sees it."""
        width = None if self.preprocessing is None else self.preprocessing.width
        return self.source.record_shape() if width is None else (width,)

    def relation(self, neighbours: Neighbours | str) -> Neighbours:
        """Return the neighbour relation, per person if the owners of the records are known.

        Args:
            neighbours: The relation that was asked for.

        Raises:
            InvalidInput: If it is one of persons, and their records are not known.
        """
        relation = Neighbours.of(neighbours)
        if self.per_person:
            return relation.per_person()
        if relation.unit == "person":
            raise InvalidInput(
                f"neighbours={relation.value!r} needs persons=, the owner of each record"
            )
        return relation

    def class_numbers(self, y: Any, rows: int, classes: int, what: str) -> Tensor:
        """Return labels, of these records or of public ones, as numbers 0..classes-1.

        Names are those of the classes. In the short form of training, numbers are numbers even if
        a schema names the classes.

        Args:
            y: The labels.
            rows: How many there must be.
            classes: The number of classes.
            what: What to call the labels in errors.

        Raises:
            InvalidInput: If a label is not valid, or could mean two classes.
        """
        names = self.class_names
        if self._numbers_are_indices and not self.given_names and _are_numbers(y, what):
            misleading = [name for place, name in enumerate(names) if _is_other(name, place)]
            if misleading:
                raise InvalidInput(
                    f"{what}: numbers, but the schema has a class named {misleading[0]!r}, so that "
                    "it is not clear which class a number means; use hf.Dataset, which reads names"
                )
            names = ()
        return class_numbers(y, rows, classes, names, what)


def dataset_and_recipe(
    kind: type[R], data: Any, y: Any, recipe: Any, columns: Columns
) -> tuple[Dataset, R]:
    """Return the records and the recipe of a training function.

    It is called as (data, recipe) with a `Dataset`, or in the short form (x, y, recipe, ...).

    Args:
        kind: The class of the recipe.
        data: The `Dataset`, or x.
        y: The recipe, or y.
        recipe: The recipe, if it was given by name or as the third argument.
        columns: The further arguments of the short form.
    """
    if isinstance(data, Dataset):
        if recipe is None:
            y, recipe = None, y
        if y is not None or columns:
            names = ", ".join(["y"] * (y is not None) + list(columns))
            raise InvalidInput(
                f"{names}: the records are an hf.Dataset, which holds them; name them there"
            )
    else:
        options: dict[str, Any] = dict(columns)
        unknown = sorted(options.keys() - Columns.__annotations__.keys())
        if unknown:
            raise TypeError(f"unexpected argument {unknown[0]!r}")
        data = Dataset(data, y, name=options.pop("dataset", "default"), **options)
        data._numbers_are_indices = True
    if not isinstance(recipe, kind):
        raise InvalidInput(f"recipe is a {type(recipe).__name__}: expected an hf.{kind.__name__}")
    return data, recipe


def _classes(
    classes: int | Sequence[Any] | None, rules: Preprocessing | None
) -> tuple[int | None, tuple[str, ...]]:
    """Return the number of classes, if it is known, and the names that the caller gave them."""
    declared = () if rules is None else rules.classes
    if classes is None:
        return len(declared) or None, ()
    names: tuple[str, ...] = ()
    if isinstance(classes, np.ndarray | Tensor):
        classes = classes.tolist()
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        count = check_integer("classes", classes, 2)
    else:
        names = tuple(str(name) for name in classes)
        count = len(names)
        if "" in names or count < 2 or len({category_name(name) for name in names}) != count:
            raise InvalidInput(f"classes={list(names)}: expected at least 2 classes, each once")
    if declared and (count != len(declared) or (names and names != declared)):
        raise InvalidInput(
            f"classes={classes!r}, but the schema names {list(declared)}: expected the same"
        )
    return count, names


def _are_numbers(y: Any, what: str) -> bool:
    """Return whether labels are numbers, not texts.

    Raises:
        InvalidInput: If there are both: one text must not decide what the numbers of others mean.
    """
    if isinstance(y, Tensor):
        return True
    texts = {isinstance(value, str) for value in (y.tolist() if isinstance(y, np.ndarray) else y)}
    if len(texts) > 1:
        raise InvalidInput(
            f"{what}: holds texts and other values; give the names of all labels, or all numbers"
        )
    return texts != {True}


def _is_other(name: str, place: int) -> bool:
    """Return whether a class is named like the number of another class."""
    if name in (category_name(True), category_name(False)):
        return place > 1 or name != category_name(bool(place))
    return re.fullmatch("-?[0-9]+", name) is not None and int(name) != place


def _checked_rules(rules: Any) -> Preprocessing | None:
    if isinstance(rules, Preprocessing | None):
        return rules
    raise InvalidInput(f"preprocessing is a {type(rules).__name__}: expected an hf.Preprocessing")


def _special_columns(
    label: str, id: str | None, person: str | None, rules: Preprocessing | None
) -> list[str]:
    """Return the columns of labels, ids and owners; raise InvalidInput if one is used twice."""
    rules = _checked_rules(rules)
    for role, each in (("label", label), ("id", id or ""), ("person", person or "")):
        if not isinstance(each, str):
            raise InvalidInput(f"{role}={each!r}: expected the name of a column")
    special = [name for name in (label, id, person) if name is not None]
    for place, name in enumerate(special):
        role = "id or owner" if place else "label"
        if name in special[:place]:
            raise InvalidInput(
                f"column {name!r} is the label; it cannot also be the id or owner of a record"
                if name == label
                else f"column {name!r} is used twice, as id and as owner"
            )
        if rules is not None and any(entry.name == name for entry in rules.columns):
            raise InvalidInput(
                f"column {name!r} is the {role} and also a feature of the schema; "
                "take it out of the schema"
            )
    return special


def _named_cells(table: Any, name: str | None, path: Path, what: str) -> list[Any] | None:
    """Return a column of ids or owners, one per record; None if no column is named."""
    if name is None:
        return None
    cells = column(table, name, path)
    if any(value is None or str(value).strip() in NO_OWNER for value in cells):
        raise InvalidInput(f"{path}, column {name!r}: a record without an {what}")
    return cells


def _cells(values: Any) -> list[Any]:
    cells = values.tolist() if hasattr(values, "tolist") else values.to_list()
    return [cell.item() if isinstance(cell, np.generic) else cell for cell in cells]
