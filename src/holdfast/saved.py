"""Saving and loading a Certified: everything that serving needs in one file."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .certified import Certified
from .errors import DamagedFile, InvalidInput
from .files import read, write
from .intervals import Interval
from .layers import Network
from .layers.description import describable, describe, nest, rebuild
from .neighbours import Neighbours
from .training.bounds import ParameterBounds
from .training.loop import Growth
from .training.recipe import Recipe

_KIND = "holdfast certified model"


def save(certified: Certified, path: Path) -> None:
    """Write a Certified. A prefix of foreign layers is not written (torch.export reads back through pickle), only probed."""
    network = certified.network
    front = [name for name, _ in network.prefix.layers]
    foreign = not all(describable(module) for _, module in network.prefix.layers)
    written = [layer.name for layer in network.layers] if foreign else [*front, *(layer.name for layer in network.layers)]
    header = {
        "layers": [describe(name, network.model.get_submodule(name)) for name in written],
        "foreign_prefix": foreign,
        "trainable": network.trainable,
        "dtype": str(network.dtype).removeprefix("torch."),
        "recipe": certified.recipe.as_dict(),
        "neighbours": certified.neighbours.value,
        "distances": certified.distances,
        "dataset": certified.dataset,
        "record_shape": certified.record_shape,
        "preprocessing": None,
        "growth": [asdict(grown) for grown in certified.growth],
    }
    tensors = {f"model/{name}": value for name, value in network.model.state_dict().items() if _belongs(name, written)}
    tensors["prefix"] = network.prefix.probe()
    for name in network.trainable:
        for end in ("lower", "upper"):
            tensors[f"{end}/{name}"] = torch.stack([getattr(bounds, end)[name] for bounds in certified.ladder])
    write(path, _KIND, header, tensors)


def load(path: str | PathLike[str], prefix: nn.Module | None = None) -> Certified:
    """Read a Certified back.

    `prefix`: where the model begins with frozen layers of types that holdfast does not write (a backbone), those
    layers, as one module from records to features; their features are compared bit for bit with those of the saved model.
    """
    path = Path(path)
    header, tensors = read(path, _KIND)
    shape = tuple(header["record_shape"])
    dtype = getattr(torch, header["dtype"])
    network = Network.of(_model(path, header, tensors, dtype, prefix), shape)
    if not torch.equal(network.prefix.probe(), tensors["prefix"]):
        if prefix is not None:
            raise InvalidInput(
                f"{path}: the prefix that was given computes other features than the saved model's; give the same frozen layers"
            )
        raise DamagedFile(
            f"{path}: the frozen layers compute other features here than where they were saved; use the same torch and machine"
        )
    if header["preprocessing"] is not None:
        raise DamagedFile(f"{path}: saved with a preprocessing that this version of holdfast cannot apply")
    distances = (0, *header["distances"])
    boxes: list[dict[str, Interval]] = [{} for _ in distances]
    for name in header["trainable"]:
        for index, box in enumerate(boxes):
            box[name] = Interval(tensors[f"lower/{name}"][index], tensors[f"upper/{name}"][index])
    return Certified(
        network=network,
        recipe=Recipe(**header["recipe"]),
        neighbours=Neighbours.of(header["neighbours"]),
        ladder=tuple(ParameterBounds(k, box) for k, box in zip(distances, boxes, strict=True)),
        dataset=header["dataset"],
        record_shape=shape,
        growth=tuple(Growth(**grown) for grown in header["growth"]),
    )


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


def _belongs(name: str, layers: list[str]) -> bool:
    return any(not layer or name.startswith(f"{layer}.") for layer in layers)
