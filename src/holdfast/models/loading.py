"""Loading models: read a file back, and refuse what training cannot have written."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_integer
from ..errors import DamagedFile, HoldfastError, InvalidInput
from ..files import read_any
from ..intervals import Interval
from ..layers import Network
from ..layers.registry import nest, rebuild
from ..preprocessing import Preprocessing
from ..relations import Neighbours
from ..training.bounds import ParameterBounds, nominal_parameters
from ..training.job import Growth
from ..training.recipe import Recipe
from .certified import Certified
from .ensemble import CertifiedEnsemble
from .head_loading import restore_head, restore_released
from .interface import CertifiedMember, EnsemblePart
from .linear import CertifiedHead
from .released import KIND as RELEASED_KIND
from .released import ReleasedHead
from .saved import KIND, tensors_below, weights_digest


def load(
    path: str | PathLike[str],
    *,
    prefix: nn.Module | None = None,
    offset: nn.Module | None = None,
) -> Certified | CertifiedHead | CertifiedEnsemble | ReleasedHead:
    """Read a saved model, ensemble or released head back.

    Args:
        path: The file that `save` wrote.
        prefix: The leading frozen layers, as one module from records to features, if the model
            begins with layers of types that holdfast does not write (a backbone). A digest of their
            weights and their features of a few probe records are compared with those of the saved
            model, bit for bit. For a head, the encoder.
        offset: The offset of a head, if it has layers of types that holdfast does not write; it is
            compared in the same way.

    Returns:
        The model or ensemble, which is as private as the records; or the released head.

    Raises:
        DamagedFile: If the file is damaged, or of another kind or version.
        InvalidInput: If a prefix or offset is needed but missing, given but not needed, or not that
            of the saved model.

    Example:
        >>> import holdfast as hf, torch
        >>> certified = hf.train(torch.nn.Linear(1, 2), [[-1.0], [1.0]], [0, 1],
        ...     hf.Recipe(batch_size=2), max_distance=1, progress=False)
        >>> certified.save("model.holdfast")
        >>> hf.load("model.holdfast").distances
        (1,)
    """
    path = Path(path)
    kind, header, tensors = read_any(path, KIND, RELEASED_KIND)
    try:
        if kind == RELEASED_KIND:
            released = restore_released(path, header, tensors, prefix, offset)
            return replace(released, preprocessing=_preprocessing(header, tensors))
        return _loaded(path, header, tensors, prefix, offset)
    except (KeyError, TypeError, IndexError, RuntimeError, AttributeError, ValueError) as error:
        if isinstance(error, HoldfastError):
            raise
        raise DamagedFile(
            f"{path}: its header is not that of a model ({error!r}); "
            "restore it from a copy, or train again"
        ) from error


def _loaded(
    path: Path,
    header: dict[str, Any],
    tensors: Mapping[str, Tensor],
    prefix: nn.Module | None,
    offset: nn.Module | None,
) -> Certified | CertifiedHead | CertifiedEnsemble:
    preprocessing = _preprocessing(header, tensors)
    members = tuple(
        _restore(path, about, tensors_below(tensors, f"{number}/"), prefix, offset)
        for number, about in enumerate(header["members"])
    )
    if header["ensemble"]:
        return CertifiedEnsemble(members, preprocessing, header["signature"], from_file=True)
    (model,) = members
    assert isinstance(model, Certified | CertifiedHead)
    return replace(model, preprocessing=preprocessing, signature=header["signature"])


def _preprocessing(header: dict[str, Any], tensors: Mapping[str, Tensor]) -> Preprocessing | None:
    about = header["preprocessing"]
    return None if about is None else Preprocessing.load_from(about, tensors)


def _restore(
    path: Path,
    header: dict[str, Any],
    tensors: Mapping[str, Tensor],
    prefix: nn.Module | None,
    offset: nn.Module | None,
) -> CertifiedMember:
    if "scheme" in header:
        return restore_head(path, header, tensors, prefix, offset)
    if offset is not None:
        raise InvalidInput(f"{path}: only a linear head has an offset; load it without offset=")
    return _restore_network(path, header, tensors, prefix)


def _restore_network(
    path: Path, header: dict[str, Any], tensors: Mapping[str, Tensor], prefix: nn.Module | None
) -> Certified:
    shape = tuple(header["record_shape"])
    dtype = getattr(torch, header["dtype"])
    network = Network.of(_model(path, header, tensors, dtype, prefix), shape)
    if header["front_weights"] != weights_digest(network.front) or not network.front.matches_probe(
        tensors["front"]
    ):
        if prefix is not None:
            raise InvalidInput(
                f"{path}: the prefix that was given computes other features than that of the "
                "saved model; pass the same frozen layers"
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
        max_records_per_person=header.get("max_records_per_person"),
        part=None if header["part"] is None else EnsemblePart(**header["part"]),
    )


def _ladder(
    path: Path, header: dict[str, Any], tensors: Mapping[str, Tensor], network: Network
) -> tuple[ParameterBounds, ...]:
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


def _model(
    path: Path,
    header: dict[str, Any],
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    prefix: nn.Module | None,
) -> nn.Module:
    if header["foreign_prefix"] and prefix is None:
        raise InvalidInput(
            f"{path}: this model begins with frozen layers that are not in the file; pass them "
            "as hf.load(path, prefix=module)"
        )
    if not header["foreign_prefix"] and prefix is not None:
        raise InvalidInput(f"{path}: this file holds the whole model; load it without prefix=")
    model = rebuild(header["layers"]).to(dtype).eval()
    model.load_state_dict(tensors_below(tensors, "model/"))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in header["trainable"])
    if prefix is None:
        return model
    if not isinstance(prefix, nn.Module):
        raise InvalidInput(f"prefix is a {type(prefix).__name__}: expected a torch.nn.Module")
    layers = {about["name"]: model.get_submodule(about["name"]) for about in header["layers"]}
    return nest({"frozen prefix": copy.deepcopy(prefix).requires_grad_(False), **layers})
