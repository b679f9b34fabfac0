"""Saved models: what a file holds, and its signature."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from ..errors import DamagedFile, InvalidInput
from ..files import digest, header_to_json, write
from ..layers import Front, Network
from ..layers.registry import describable, describe
from ..ledger import Ledger
from ..preprocessing import Preprocessing

KIND = "holdfast certified model"


class SavedMember(Protocol):
    """What is saved of one trained model."""

    def save_to(self, name_prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]: ...


class SavedModel(Protocol):
    """What is saved of a model or an ensemble."""

    @property
    def members(self) -> Sequence[SavedMember]: ...
    @property
    def preprocessing(self) -> Preprocessing | None: ...
    @property
    def signature(self) -> str | None: ...


def save(certified: SavedModel, path: Path, ledger: Ledger | None = None) -> None:
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


def check_signature(certified: SavedModel, ledger: Ledger, required: bool) -> None:
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


def _content(certified: SavedModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
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


def saved_size(certified: SavedModel) -> int:
    """Return about how many bytes the file of a model has."""
    header, tensors = _content(certified)
    text = len(json.dumps(header_to_json(header)))
    entries = 170 + 80 * len(tensors)  # kind, digest and signature; names and shapes
    return text + entries + sum(value.numel() * value.element_size() for value in tensors.values())


def save_network(network: Network, name_prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the header of a network and add its tensors to `tensors`."""
    front = [name for name, _ in network.front.layers]
    foreign = not all(describable(module) for _, module in network.front.layers)
    saved_layers = (
        [layer.name for layer in network.layers]
        if foreign
        else [*front, *(layer.name for layer in network.layers)]
    )
    tensors |= {
        f"{name_prefix}model/{name}": value
        for name, value in network.model.state_dict().items()
        if _is_in_layers(name, saved_layers)
    }
    tensors[f"{name_prefix}front"] = network.front.probe_features()
    return {
        "layers": [describe(name, network.model.get_submodule(name)) for name in saved_layers],
        "foreign_prefix": foreign,
        "front_weights": weights_digest(network.front),
        "trainable": network.trainable,
        "dtype": str(network.dtype).removeprefix("torch."),
    }


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


def _is_in_layers(name: str, layers: list[str]) -> bool:
    return any(not layer or name.startswith(f"{layer}.") for layer in layers)
