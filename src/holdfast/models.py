"""The interface of certified models, ensembles, and the files that models are saved in."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .arrays import check_features, shape_text
from .certificates import Certificate, certify_vote, count_votes, winners
from .errors import DamagedFile, InvalidInput
from .files import digest, header_to_json, write
from .layers import Front
from .layers.registry import describable, describe
from .ledger import Ledger
from .preprocessing import Preprocessing
from .relations import Neighbours
from .workers import progress_bar

_ROWS_PER_ADVANCE = 500  # queries between two advances of the progress bar


@dataclass(frozen=True)
class EnsemblePart:
    """The part of the records that a member of an ensemble was trained on.

    It is number `index` of the `count` parts into which a hash with `seed` splits the records.
    `call` is a random token of the training call: parts of two calls may share records, because the
    calls may have been given other records or ids. It is empty in files of older versions.
    """

    seed: int
    count: int
    index: int
    call: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a file holds them: an empty token is left out, as it always was."""
        return {name: value for name, value in asdict(self).items() if value != ""}


def surplus_facts(max_records_per_person: int | None) -> list[str]:
    """Return, for privacy statements, how many records of a person are used, if it is limited."""
    if max_records_per_person is None:
        return []
    return [f"at most {max_records_per_person} records per person are used, chosen by a hash"]


class CertifiedModel(ABC):
    """What training returns: one model, or the members of an ensemble that vote.

    Plain labels, certificates and everything else here are NOT private: private answers come from a
    mechanism, or from `hf.PrivatePredictor`.
    """

    if TYPE_CHECKING:  # fields of some classes and properties of others

        @property
        def members(self) -> tuple[CertifiedMember, ...]:
            """The models that were trained: all members of an ensemble, or this model alone."""

        @property
        def recipe(self) -> Any:
            """The public settings of training: an `hf.Recipe` or an `hf.LinearRecipe`."""

        @property
        def is_network(self) -> bool:
            """Whether it was trained with boxes, as networks are; False for linear heads."""

        @property
        def neighbours(self) -> Neighbours: ...
        @property
        def distances(self) -> Sequence[int]: ...
        @property
        def classes(self) -> int: ...
        @property
        def dataset(self) -> str: ...
        @property
        def run_id(self) -> str: ...
        @property
        def preprocessing(self) -> Preprocessing | None: ...
        @property
        def signature(self) -> str | None: ...

    @abstractmethod
    def combine(self, certificates: list[Certificate]) -> Certificate:
        """Return the certificate of this model, given that of each member."""

    @abstractmethod
    def predict(self, queries: Any) -> Tensor:
        """Return the plain labels, one int64 per query. NOT private.

        Args:
            queries: One row per query, like the x given to training.
        """

    def certify(self, queries: Any, *, progress: bool = False) -> Certificate:
        """Return the label of each query and the distance up to which it is stable. NOT private.

        If all distances 1..K were run, the distance of a single model's certificate is k itself; on
        a sparse grid it is the rank, that is, the number of grid points that are certified. The
        certificate of an ensemble also holds the votes.

        Args:
            queries: One row per query, like the x given to training.
            progress: Whether to show a progress bar.

        Raises:
            InvalidInput: If the queries do not have the shape of a record.
        """
        return self.combine(self.certify_members(queries, progress=progress))

    def certify_members(self, queries: Any, *, progress: bool = False) -> list[Certificate]:
        """Return the certificate of each member. NOT private.

        Args:
            queries: One row per query, like the x given to training.
            progress: Whether to show a progress bar.
        """
        features, found = self.features(queries), []
        with progress_bar("certifying", len(features) * len(self.members), progress) as on_progress:
            for member in self.members:
                parts = []
                for rows in torch.split(features, _ROWS_PER_ADVANCE) if on_progress else [features]:
                    parts.append(member.certify_member(rows))
                    if on_progress is not None:
                        on_progress(len(rows))
                found.append(Certificate.joined(parts))
        return found

    def features(self, queries: Any) -> Tensor:
        """Return the queries as the members see them, after preprocessing.

        Queries with equal features count as the same query.
        """
        if self.preprocessing is not None:
            queries = self.preprocessing.apply(queries, "queries")
        first = self.members[0]
        features = check_features(queries, first.dtype, "queries")
        if features.shape[1:] != first.record_shape:
            raise InvalidInput(
                f"queries have shape {tuple(features.shape)}: expected (number of queries, "
                f"{shape_text(first.record_shape)})"
            )
        return features

    def certify_features(self, features: Tensor) -> Certificate:
        """Return the certificate of queries that are given as `features` returns them."""
        return self.combine([member.certify_member(features) for member in self.members])

    def certify_constant_work(self, features: Tensor) -> Certificate:
        """Return the same certificate as `certify_features`, with work independent of the outcome.

        Code that serves answers uses this method.
        """
        return self.combine(
            [member.certify_member_constant_work(features) for member in self.members]
        )

    def class_names(self, labels: Iterable[int]) -> list[str]:
        """Return the public names of labels, or their numbers if they have no names."""
        names = self._class_names
        return [names[label] if names else str(label) for label in labels]

    @property
    def has_class_names(self) -> bool:
        """Whether the classes have public names."""
        return bool(self._class_names)

    @property
    def _class_names(self) -> tuple[str, ...]:
        names = () if self.preprocessing is None else self.preprocessing.classes
        return names or self.members[0].names

    def save(self, path: str | PathLike[str], *, ledger: Ledger | None = None) -> None:
        """Save everything that serving needs.

        Leading frozen layers, encoders and offsets of types that holdfast does not write are left
        out and must be passed to `load` again.

        Args:
            path: Where to write the file, which is as private as the records.
            ledger: The ledger whose key signs the file, so that predictors detect changes.
        """
        save(self, Path(path), ledger)


class CertifiedMember(CertifiedModel):
    """A single certified model, alone or as a member of an ensemble."""

    if TYPE_CHECKING:

        @property
        def record_shape(self) -> tuple[int, ...]:
            """The shape of one record."""

        @property
        def part(self) -> EnsemblePart | None: ...
        @property
        def dtype(self) -> torch.dtype:
            """The type of records and queries."""

        @property
        def names(self) -> tuple[str, ...]:
            """The public names of the classes; empty if they have none."""

    @property
    def members(self) -> tuple[CertifiedMember, ...]:
        return (self,)

    def combine(self, certificates: list[Certificate]) -> Certificate:
        return certificates[0]

    @abstractmethod
    def certify_member(self, features: Tensor) -> Certificate:
        """Return this model's certificate of queries that are given as `features` returns them."""

    @abstractmethod
    def certify_member_constant_work(self, features: Tensor) -> Certificate:
        """Return the same as `certify_member`, with work independent of the outcome."""

    @abstractmethod
    def public_facts(self) -> list[str]:
        """Return, for the privacy statement, what the promise takes as public."""

    @abstractmethod
    def save_to(self, name_prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Return the header of this model for a saved file and add its tensors to `tensors`.

        The names of its tensors begin with `name_prefix`.
        """


@dataclass(frozen=True)
class Estimate:
    """The approximate cost of a training run."""

    seconds: float
    memory: int  # bytes at the peak, in addition to the program itself
    file: int  # bytes of the saved model


def new_run_id() -> str:
    """Return a random id for a training run.

    Guarantees:
        The id reveals nothing about the records. In particular, two ids do not tell whether the
        records changed between the two runs.
    """
    return secrets.token_hex(16)


KIND = "holdfast certified model"


def save(certified: CertifiedModel, path: Path, ledger: Ledger | None = None) -> None:
    """Write a model or an ensemble, signed with the key of `ledger` if one is given.

    Leading frozen layers of unsupported types are not written (torch.export would read them back
    through pickle); the file holds only their features for a few probe records and a digest of
    their weights.
    """
    if ledger is not None and not isinstance(ledger, Ledger):
        raise InvalidInput(
            f"ledger is a {type(ledger).__name__}: expected the hf.Ledger whose key signs the file"
        )
    header, tensors = _content(certified)
    signature = None if ledger is None else ledger.sign(_digest(header, tensors))
    write(path, KIND, {**header, "signature": signature}, tensors)


def check_signature(certified: CertifiedModel, ledger: Ledger, required: bool) -> None:
    """Raise if a model is not the one that was signed with the ledger's key.

    Args:
        certified: The model, as `load` returned it.
        ledger: The ledger whose owner may have signed it.
        required: Whether to also refuse a model that has no signature, or one of another ledger.

    Raises:
        DamagedFile: If the model has a signature of this ledger that does not match its content.
        InvalidInput: If a signature of this ledger is required and missing.
    """
    signature = certified.signature
    if signature is not None and ledger.claims_signature(signature):
        if not hmac.compare_digest(ledger.sign(_digest(*_content(certified))), signature):
            raise DamagedFile(
                "the model is not the one that was signed with this ledger's key: "
                "it was changed afterwards; restore the file from a copy, or train again"
            )
    elif required:
        raise InvalidInput(
            "the model has "
            f"{'no signature' if signature is None else 'a signature of another ledger'}, "
            "and one is required; save it with save(path, ledger=ledger), and load that file"
        )


def _digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of all that is saved for a model except its signature. NOT private."""
    return digest(KIND, header_to_json(header), tensors)


def _content(certified: CertifiedModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors: dict[str, Tensor] = {}
    header = {
        "ensemble": id(certified.members[0]) != id(certified),
        "members": [
            member.save_to(f"{number}/", tensors) for number, member in enumerate(certified.members)
        ],
        "preprocessing": None
        if certified.preprocessing is None
        else certified.preprocessing.save_to(tensors),
    }
    return header, tensors


def saved_size(certified: CertifiedModel) -> int:
    """Return about how many bytes the file of a model has."""
    header, tensors = _content(certified)
    text = len(json.dumps(header_to_json(header)))
    entries = 170 + 80 * len(tensors)  # kind, digest and signature; names and shapes
    return text + entries + sum(value.numel() * value.element_size() for value in tensors.values())


def tensors_below(tensors: Mapping[str, Tensor], name_prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {
        name.removeprefix(name_prefix): value
        for name, value in tensors.items()
        if name.startswith(name_prefix)
    }


def save_front(front: Front, name_prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the header of an encoder or offset and add its tensors to `tensors`.

    If it has layers of unsupported types, only a digest and features of probe records are saved.
    """
    foreign = not all(describable(module) for _, module in front.layers)
    tensors[f"{name_prefix}probe"] = front.probe_features()
    if not foreign:
        for name, module in front.layers:
            tensors |= {
                f"{name_prefix}model/{name}.{key}".replace("/.", "/"): value
                for key, value in module.state_dict().items()
            }
    return {
        "layers": None if foreign else [describe(name, module) for name, module in front.layers],
        "weights": weights_digest(front),
        "dtype": str(front.dtype).removeprefix("torch."),
    }


def weights_digest(front: Front) -> str:
    """Return the SHA-256 of the parameters and buffers of the frozen layers, in order.

    The names of the layers do not matter.
    """
    values = [value for _, module in front.layers for value in module.state_dict().values()]
    return digest(KIND, "front", {f"{number:06}": value for number, value in enumerate(values)})


def is_in_layers(name: str, layers: list[str]) -> bool:
    return any(not layer or name.startswith(f"{layer}.") for layer in layers)


@dataclass(frozen=True, eq=False)
class CertifiedEnsemble(CertifiedModel):
    """An ensemble of certified members that vote; ties go to the larger label.

    NOT private: releasing answers requires a mechanism.
    """

    members: tuple[CertifiedMember, ...]
    preprocessing: Preprocessing | None = None
    signature: str | None = None  # of the file that it was loaded from, by the key of a ledger
    from_file: InitVar[bool] = False  # whether the members are those of one file, as it was saved

    def __post_init__(self, from_file: bool) -> None:
        kinds = {
            (member.dataset, member.neighbours, member.classes, member.record_shape)
            for member in self.members
        }
        if len(kinds) != 1 or len({id(member) for member in self.members}) != len(self.members):
            raise InvalidInput(
                "members: expected different models of one data set, "
                "relation and shape, as train_ensemble makes them"
            )
        if any(member.preprocessing is not None for member in self.members):
            raise InvalidInput(
                "members: expected models without preprocessing; "
                "give it to the ensemble, which applies it once"
            )
        self._refuse_other_splits(from_file)
        if any(member.recipe != self.members[0].recipe for member in self.members):
            raise InvalidInput("members: expected the same recipe for all of them")

    def _refuse_other_splits(self, from_file: bool) -> None:
        """Raise InvalidInput unless the members are the parts of one split, by one training call.

        Members of older versions have no token of their call; they are accepted from one file.
        """
        parts = {member.part for member in self.members if member.part is not None}
        splits = {(part.seed, part.count, part.call) for part in parts}
        indices = {part.index for part in parts}
        if (
            len(splits) != 1
            or indices != set(range(len(self.members)))
            or splits.pop()[1] != len(self.members)
        ):
            raise InvalidInput(
                f"members: {len(self.members)} models whose records are not the parts of one "
                "split, made by one call; the distance of a vote holds only if no two members "
                "share a record; train them with train_ensemble"
            )
        if not from_file and any(not part.call for part in parts):
            raise InvalidInput(
                "members: models of an older version, which do not tell whether one call trained "
                "them; load the ensemble from its file, or train it again with train_ensemble"
            )

    @property
    def classes(self) -> int:
        return self.members[0].classes

    @property
    def neighbours(self) -> Neighbours:
        return self.members[0].neighbours

    @property
    def distances(self) -> Sequence[int]:
        """The distances above 0 that each member was run at."""
        return self.members[0].distances

    @property
    def recipe(self) -> Any:
        """The recipe of every member."""
        return self.members[0].recipe

    @property
    def is_network(self) -> bool:
        return self.members[0].is_network

    @property
    def dataset(self) -> str:
        return self.members[0].dataset

    @property
    def run_id(self) -> str:
        """The identifier of the training run: a hash of the random identifiers of the members."""
        return hashlib.sha256(
            "".join(member.run_id for member in self.members).encode()
        ).hexdigest()[:32]

    def combine(self, certificates: list[Certificate]) -> Certificate:
        return certify_vote(certificates)

    def predict(self, queries: Any) -> Tensor:
        """Return the plain labels, one int64 per query. NOT private."""
        return winners(self.votes(queries))

    def votes(self, queries: Any) -> Tensor:
        """Return the number of votes for each class, as (queries, classes). NOT private."""
        features = self.features(queries)
        return count_votes(
            torch.stack([member.predict(features) for member in self.members], 1), self.classes
        )
