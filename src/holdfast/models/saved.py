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
from .certified import Certified, Part
from .ensemble import CertifiedEnsemble

_KIND = "holdfast certified model"


def save(certified: Certified | CertifiedEnsemble, path: Path, ledger: Ledger | None = None) -> None:
    """Write a model or an ensemble, signed with the key of `ledger` if one is given.

    A prefix of foreign layers is not written (torch.export reads back through pickle), only probed.
    """
    if ledger is not None and not isinstance(ledger, Ledger):
        raise InvalidInput(f"ledger is a {type(ledger).__name__}: expected the hf.Ledger whose key signs the file")
    header, tensors = _content(certified)
    signature = None if ledger is None else ledger.sign(_digest(header, tensors))
    write(path, _KIND, {**header, "signature": signature}, tensors)


def check_signature(certified: Certified | CertifiedEnsemble, ledger: Ledger, required: bool) -> None:
    """Raise if a model is not what was signed with the ledger's key.

    Args:
        certified: The model, as `load` returned it.
        ledger: The ledger whose owner may have signed it.
        required: Whether a model without a signature, or with another ledger's, is refused too.

    Raises:
        DamagedFile: If the model claims a signature of this ledger that is not its own.
        InvalidInput: If a signature is required and there is none of this ledger.
    """
    signature = certified.signature
    if signature is not None and ledger.claims_signature(signature):
        if not hmac.compare_digest(ledger.sign(_digest(*_content(certified))), signature):
            raise DamagedFile(
                "the model is not the one that was signed with this ledger's key: it was changed afterwards; restore the file from a copy, or train again"
            )
    elif required:
        raise InvalidInput(
            f"the model has {'no signature' if signature is None else 'a signature of another ledger'}, and one is required; "
            "save it with save(path, ledger=ledger), and load that file"
        )


def _digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of all that is saved of a model, but for its signature. NOT private."""
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


def _describe(certified: Certified, mark: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The header of one model; its numbers go into `tensors`, under names that begin with `mark`."""
    network = certified.network
    front = [name for name, _ in network.front.layers]
    foreign = not all(describable(module) for _, module in network.front.layers)
    written = [layer.name for layer in network.layers] if foreign else [*front, *(layer.name for layer in network.layers)]
    tensors |= {f"{mark}model/{name}": value for name, value in network.model.state_dict().items() if _belongs(name, written)}
    tensors[f"{mark}front"] = network.front.probe_features()
    for name in network.trainable:
        for end in ("lower", "upper"):
            tensors[f"{mark}{end}/{name}"] = torch.stack([getattr(bounds, end)[name] for bounds in certified.ladder])
    return {
        "layers": [describe(name, network.model.get_submodule(name)) for name in written],
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
    """Read a model or an ensemble back.

    `prefix`: where the model begins with frozen layers of types that holdfast does not write (a backbone), those
    layers, as one module from records to features; their features are compared bit for bit with those of the saved model.
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


def _restore(path: Path, header: dict[str, Any], mark: str, tensors: Mapping[str, Tensor], prefix: nn.Module | None) -> Certified:
    shape = tuple(header["record_shape"])
    dtype = getattr(torch, header["dtype"])
    tensors = {name.removeprefix(mark): value for name, value in tensors.items() if name.startswith(mark)}
    network = Network.of(_model(path, header, tensors, dtype, prefix), shape)
    if header["front_weights"] != _weights_digest(network) or not network.front.matches_probe(tensors["front"]):
        if prefix is not None:
            raise InvalidInput(
                f"{path}: the prefix that was given computes other features than the saved model's; give the same frozen layers"
            )
        raise DamagedFile(
            f"{path}: the frozen layers compute other features here than where they were saved; use the same torch and machine"
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
        part=None if header["part"] is None else Part(**header["part"]),
    )


def _ladder(path: Path, header: dict[str, Any], tensors: Mapping[str, Tensor], network: Network) -> tuple[ParameterBounds, ...]:
    """Return the boxes of a file, each as wide as the model's parameters and inside the next."""
    distances = (0, *(check_integer("distances", k, 1) for k in header["distances"]))
    boxes: list[dict[str, Interval]] = [{} for _ in distances]
    for name in network.trainable:
        ends = [tensors[f"{end}/{name}"] for end in ("lower", "upper")]
        wanted = (len(distances), *network.parameters[name].shape)
        if any(tuple(end.shape) != wanted or end.dtype != network.dtype for end in ends):
            raise DamagedFile(
                f"{path}: the bounds of {name!r} do not fit the model's parameter, {wanted[1:]} in {network.dtype}; "
                "restore the file from a copy, or train again"
            )
        for index, box in enumerate(boxes):
            box[name] = Interval(ends[0][index], ends[1][index])
    ladder = tuple(ParameterBounds(k, box) for k, box in zip(distances, boxes, strict=True))
    _refuse_unnested(path, ladder)
    return ladder


def _refuse_unnested(path: Path, ladder: tuple[ParameterBounds, ...]) -> None:
    """Distances are found by bisection, which needs boxes that nest; training makes no others."""
    for inner, outer in pairwise(ladder):
        if not outer.distance > inner.distance or not outer.encloses(inner):
            raise DamagedFile(
                f"{path}: the box of distance {outer.distance} does not enclose that of distance {inner.distance}: "
                "this is not what training wrote; restore the file from a copy, or train again"
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
    """Return the SHA-256 of the frozen layers' parameters and buffers, in their order, whatever the layers are called."""
    values = [value for _, module in network.front.layers for value in module.state_dict().values()]
    return digest(_KIND, "front", {f"{number:06}": value for number, value in enumerate(values)})


def _belongs(name: str, layers: list[str]) -> bool:
    return any(not layer or name.startswith(f"{layer}.") for layer in layers)
