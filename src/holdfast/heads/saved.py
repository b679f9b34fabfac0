"""A head in a file: read it back, and refuse what training cannot have written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_integer
from ..errors import DamagedFile, InvalidInput
from ..layers import Front
from ..layers.registry import rebuild
from ..models import EnsemblePart, tensors_below, weights_digest
from .certified import CertifiedHead
from .recipe import LinearRecipe
from .released import ReleasedHead, ReleaseRecord
from .schemes import HeadInputs, make_scheme
from .training import distance_cap, head_relation


def restore_head(
    path: Path,
    header: dict[str, Any],
    tensors: Mapping[str, Tensor],
    encoder: nn.Module | None,
    offset: nn.Module | None,
) -> CertifiedHead:
    """Return the head that a file describes.

    The ball is not in the file: it is computed again from the recipe.
    """
    head = CertifiedHead(
        **_trained(path, header, tensors, encoder, offset),
        max_distance=distance_cap(header["max_distance"]),
        part=None if header["part"] is None else EnsemblePart(**header["part"]),
    )
    _check_weights(path, head)
    return head


def restore_released(
    path: Path,
    header: dict[str, Any],
    tensors: Mapping[str, Tensor],
    encoder: nn.Module | None,
    offset: nn.Module | None,
) -> ReleasedHead:
    """Return the released head that a file describes."""
    trained = _trained(path, header, tensors, encoder, offset)
    try:
        return ReleasedHead(**trained, release=ReleaseRecord.from_json(header["release"]))
    except InvalidInput as error:
        raise DamagedFile(
            f"{path}: this is not what a release has written ({error}); restore the file from a "
            "copy, or release the head again"
        ) from error


def _trained(
    path: Path,
    header: dict[str, Any],
    tensors: Mapping[str, Tensor],
    encoder: nn.Module | None,
    offset: nn.Module | None,
) -> dict[str, Any]:
    """Return what every head has, certified or released."""
    shape = tuple(header["record_shape"])
    recipe = LinearRecipe(**header["recipe"])
    classes = check_integer("classes", header["classes"], 2)
    if classes > len(tensors["weights"]) + 1:
        raise DamagedFile(f"{path}: fewer weights than {classes} classes have; restore a copy")
    scheme = make_scheme(header["scheme"], classes)
    names = tuple(str(name) for name in header["names"])
    if (
        recipe.batch_size is None
        or recipe.scale is None
        or scheme.name != header["scheme"]
        or len(names) not in (0, scheme.classes)
    ):
        raise DamagedFile(
            f"{path}: the recipe, scheme or class names of the head are not those of a trained "
            "one; restore the file from a copy, or train again"
        )
    inputs = HeadInputs.of(
        shape,
        _module(path, "encoder", header["encoder"], tensors, encoder),
        _module(path, "offset", header["offset"], tensors, offset),
        scheme.classes,
        recipe.scale,
        recipe.radius,
    )
    for name, front in (("encoder", inputs.encoder), ("offset", inputs.offset)):
        if front is not None:
            _check_front(path, name, header[name], front, tensors[f"{name}/probe"])
    _check_shape(path, tensors["weights"], (scheme.heads, inputs.width))
    return {
        "weights": tensors["weights"],
        "scheme": scheme,
        "inputs": inputs,
        "recipe": recipe,
        "neighbours": head_relation(header["neighbours"]),
        "max_records_per_person": header.get("max_records_per_person"),
        "dataset": header["dataset"],
        "run_id": header["run_id"],
        "names": names,
    }


def _check_shape(path: Path, weights: Tensor, wanted: tuple[int, int]) -> None:
    if tuple(weights.shape) != wanted or weights.dtype != torch.float64:
        raise DamagedFile(
            f"{path}: the weights are {weights.dtype} {tuple(weights.shape)}: expected float64 "
            f"{wanted}; restore the file from a copy, or train again"
        )


def _check_weights(path: Path, head: CertifiedHead) -> None:
    """Raise DamagedFile unless the weights are no longer than training can make them."""
    longest = float(head.weights.norm(dim=1).max())
    if not longest <= head.ball.weight_norm:
        raise DamagedFile(
            f"{path}: weights of norm {longest:g}: with this recipe, training makes them at most "
            f"{head.ball.weight_norm:g} long; restore the file from a copy, or train again"
        )


def _module(
    path: Path,
    name: str,
    about: dict[str, Any] | None,
    tensors: Mapping[str, Tensor],
    given: nn.Module | None,
) -> nn.Module | None:
    """Return the encoder or offset: from the file, or the one that was given."""
    keyword = "prefix" if name == "encoder" else name
    missing = about is not None and about["layers"] is None
    if missing and given is None:
        raise InvalidInput(
            f"{path}: the {name} of this head is not in the file; pass it as "
            f"hf.load(path, {keyword}=module)"
        )
    if not missing and given is not None:
        raise InvalidInput(
            f"{path}: the file holds all that this head needs; load it without {keyword}="
        )
    if about is None or missing:
        return given
    module = rebuild(about["layers"]).to(getattr(torch, about["dtype"])).eval()
    module.load_state_dict(tensors_below(tensors, f"{name}/model/"))
    return module


def _check_front(path: Path, name: str, about: dict[str, Any], front: Front, probe: Tensor) -> None:
    if about["weights"] == weights_digest(front) and front.matches_probe(probe):
        return
    if about["layers"] is None:
        raise InvalidInput(
            f"{path}: the {name} that was given is not that of the saved head; pass the same module"
        )
    raise DamagedFile(
        f"{path}: the {name} computes other numbers here than where it was saved; "
        "use the same version of torch and the same kind of machine"
    )
