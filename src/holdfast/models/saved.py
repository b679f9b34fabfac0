"""Saving and loading models and ensembles: everything that serving needs in one file."""

from __future__ import annotations

import copy
import hmac
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_integer
from ..errors import DamagedFile, HoldfastError, InvalidInput
from ..files import digest, header_to_json, read, write
from ..intervals import Interval
from ..layers import Network
from ..layers.registry import describable, describe, nest, rebuild
from ..ledger import Ledger
from ..preprocessing import Preprocessing
from ..relations import Neighbours
from ..training.bounds import ParameterBounds, nominal_parameters
from ..training.loop import Growth
from ..training.recipe import Recipe
from .certified import Certified, EnsemblePart
from .ensemble import CertifiedEnsemble

_KIND = "holdfast certified model"


def save(certified: Certified | CertifiedEnsemble, path: Path, ledger: Ledger | None = None) -> None:
    """Write a model or an ensemble, signed with the key of `ledger` if one is given.

    Leading frozen layers of unsupported types are not written (torch.export would read them back
    through pickle); the file holds only their features for a few probe records and a digest of
    their weights.
    """
    if ledger is not None and not isinstance(ledger, Ledger):
        raise InvalidInput(f"ledger is a {type(ledger).__name__}: expected the hf.Ledger whose key signs the file")
    header, tensors = _content(certified)
    signature = None if ledger is None else ledger.sign(_digest(header, tensors))
    write(path, _KIND, {**header, "signature": signature}, tensors)


def check_signature(certified: Certified | CertifiedEnsemble, ledger: Ledger, required: bool) -> None:
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
    return digest(_KIND, header_to_json(header), tensors)


def _content(certified: Certified | CertifiedEnsemble) -> tuple[dict[str, Any], dict[str, Tensor]]:
    members = certified.members if isinstance(certified, CertifiedEnsemble) else (certified,)
    tensors: dict[str, Tensor] = {}
    header = {
        "ensemble": isinstance(certified, CertifiedEnsemble),
        "members": [_describe(member, f"{number}/", tensors) for number, member in enumerate(members)],
        "preprocessing": None if certified.preprocessing is None else certified.preprocessing.save_to(tensors),
    }
    return header, tensors


def _describe(certified: Certified, name_prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the header of one model and add its tensors to `tensors`.

    The names of its tensors begin with `name_prefix`.
    """
    network = certified.network
    front = [name for name, _ in network.front.layers]
    foreign = not all(describable(module) for _, module in network.front.layers)
    saved_layers = [layer.name for layer in network.layers] if foreign else [*front, *(layer.name for layer in network.layers)]
    tensors |= {
        f"{name_prefix}model/{name}": value for name, value in network.model.state_dict().items() if _is_in_layers(name, saved_layers)
    }
    tensors[f"{name_prefix}front"] = network.front.probe_features()
    for name in network.trainable:
        for end in ("lower", "upper"):
            tensors[f"{name_prefix}{end}/{name}"] = torch.stack([getattr(bounds, end)[name] for bounds in certified.ladder])
    return {
        "layers": [describe(name, network.model.get_submodule(name)) for name in saved_layers],
        "foreign_prefix": foreign,
        "front_weights": _weights_digest(network),
        "trainable": network.trainable,
        "dtype": str(network.dtype).removeprefix("torch."),
        "recipe": certified.recipe.as_dict(),
        "neighbours": certified.neighbours.value,
        "distances": certified.distances,
        "dataset": certified.dataset,
        "record_shape": certified.record_shape,
        "growth": [asdict(grown) for grown in certified.growth],
        "public_records": certified.public_records,
        "run_id": certified.run_id,
        "part": None if certified.part is None else asdict(certified.part),
    }


def load(path: str | PathLike[str], prefix: nn.Module | None = None) -> Certified | CertifiedEnsemble:
    """Load a model or an ensemble.

    `prefix`: if the model begins with frozen layers of types that holdfast does not write (a
    backbone), these layers, as one module from records to features. Their weights, and their
    features for a few probe records, must equal those of the saved model bit for bit.
    """
    path = Path(path)
    header, tensors = read(path, _KIND)
    try:
        return _loaded(path, header, tensors, prefix)
    except (KeyError, TypeError, IndexError, RuntimeError, AttributeError, ValueError) as error:
        if isinstance(error, HoldfastError):
            raise
        raise DamagedFile(f"{path}: its header is not that of a model ({error!r}); restore it from a copy, or train again") from error


def _loaded(path: Path, header: dict[str, Any], tensors: Mapping[str, Tensor], prefix: nn.Module | None) -> Certified | CertifiedEnsemble:
    about = header["preprocessing"]
    preprocessing = None if about is None else Preprocessing.load_from(about, tensors)
    members = tuple(_restore(path, about, f"{number}/", tensors, prefix) for number, about in enumerate(header["members"]))
    if header["ensemble"]:
        return CertifiedEnsemble(members, preprocessing, header["signature"])
    return replace(members[0], preprocessing=preprocessing, signature=header["signature"])


def _restore(path: Path, header: dict[str, Any], name_prefix: str, tensors: Mapping[str, Tensor], prefix: nn.Module | None) -> Certified:
    shape = tuple(header["record_shape"])
    dtype = getattr(torch, header["dtype"])
    tensors = {name.removeprefix(name_prefix): value for name, value in tensors.items() if name.startswith(name_prefix)}
    network = Network.of(_model(path, header, tensors, dtype, prefix), shape)
    if header["front_weights"] != _weights_digest(network) or not network.front.matches_probe(tensors["front"]):
        if prefix is not None:
            raise InvalidInput(
                f"{path}: the prefix that was given computes other features than that of the saved model; pass the same frozen layers"
            )
        raise DamagedFile(
            f"{path}: the frozen layers compute other features here than where they were saved; "
            "use the same version of torch and the same kind of machine"
        )
    ladder = _ladder(path, header, tensors, network)
    return Certified(
        network=network,
        recipe=Recipe(**header["recipe"]),
        neighbours=Neighbours.of(header["neighbours"]),
        ladder=ladder,
        dataset=header["dataset"],
        record_shape=shape,
        growth=tuple(Growth(**grown) for grown in header["growth"]),
        run_id=header["run_id"],
        public_records=header["public_records"],
        part=None if header["part"] is None else EnsemblePart(**header["part"]),
    )


def _ladder(path: Path, header: dict[str, Any], tensors: Mapping[str, Tensor], network: Network) -> tuple[ParameterBounds, ...]:
    """Return the boxes of a file; raise DamagedFile unless they fit the parameters and nest."""
    distances = (0, *(check_integer("distances", k, 1) for k in header["distances"]))
    boxes: list[dict[str, Interval]] = [{} for _ in distances]
    for name in network.trainable:
        ends = [tensors[f"{end}/{name}"] for end in ("lower", "upper")]
        wanted = (len(distances), *network.parameters[name].shape)
        if any(tuple(end.shape) != wanted or end.dtype != network.dtype for end in ends):
            raise DamagedFile(
                f"{path}: the bounds of {name!r} do not fit the model's parameter, "
                f"{wanted[1:]} in {network.dtype}; "
                "restore the file from a copy, or train again"
            )
        for index, box in enumerate(boxes):
            box[name] = Interval(ends[0][index], ends[1][index])
    ladder = tuple(ParameterBounds(k, box) for k, box in zip(distances, boxes, strict=True))
    _check_nesting(path, ladder)
    return ladder


def _check_nesting(path: Path, ladder: tuple[ParameterBounds, ...]) -> None:
    """Raise DamagedFile unless the boxes nest, as the bisection over distances requires.

    Boxes that were written by training always nest.
    """
    for inner, outer in pairwise(ladder):
        if not outer.distance > inner.distance or not outer.encloses(inner):
            raise DamagedFile(
                f"{path}: the box of distance {outer.distance} does not enclose "
                f"that of distance {inner.distance}: this is not what training wrote; "
                "restore the file from a copy, or train again"
            )
    nominal_parameters(ladder[0])


def _model(path: Path, header: dict[str, Any], tensors: Mapping[str, Tensor], dtype: torch.dtype, prefix: nn.Module | None) -> nn.Module:
    if header["foreign_prefix"] and prefix is None:
        raise InvalidInput(
            f"{path}: this model begins with frozen layers that are not in the file; pass them as hf.load(path, prefix=module)"
        )
    if not header["foreign_prefix"] and prefix is not None:
        raise InvalidInput(f"{path}: this file holds the whole model; load it without prefix=")
    model = rebuild(header["layers"]).to(dtype).eval()
    model.load_state_dict({name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")})
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in header["trainable"])
    if prefix is None:
        return model
    if not isinstance(prefix, nn.Module):
        raise InvalidInput(f"prefix is a {type(prefix).__name__}: expected a torch.nn.Module")
    layers = {about["name"]: model.get_submodule(about["name"]) for about in header["layers"]}
    return nest({"frozen prefix": copy.deepcopy(prefix).requires_grad_(False), **layers})


def _weights_digest(network: Network) -> str:
    """Return the SHA-256 of the parameters and buffers of the frozen layers, in order.

    The names of the layers do not matter.
    """
    values = [value for _, module in network.front.layers for value in module.state_dict().values()]
    return digest(_KIND, "front", {f"{number:06}": value for number, value in enumerate(values)})


def _is_in_layers(name: str, layers: list[str]) -> bool:
    return any(not layer or name.startswith(f"{layer}.") for layer in layers)
