"""The stable distance of a model: the largest k such that every model in the box of distance k gives one label.

Boxes nest to the last bit, so a label that is certified in one box is certified in all smaller ones,
and the distance can be found by bisection (docs/theory/nesting.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..kernels import require_ieee
from ..layers import Network, Outputs
from ..layers.base import pairs
from ..training.bounds import ParameterBounds
from ..workers import no_grad_no_autocast, workers

NONE = -1
"""In place of a label: the box has none on which all of its models agree."""

Labels = Int64[Tensor, " queries"]
Ladder = Sequence[ParameterBounds]
"""Boxes of growing distance, beginning with distance 0."""


def certify(network: Network, ladder: Ladder, queries: Float[Tensor, "queries ..."]) -> tuple[Labels, Labels]:
    """Return labels and stable distances of many queries (features, behind the front), for the owner.

    The distance is the *rank*: how many boxes beyond the first are certified. If the ladder is 0, 1, 2,
    ... that is k itself; on a sparse ladder the rank is what changes by at most 1 between neighbours, and
    the value is not. A query that overflows in some box is not certified from that box on; if it
    overflows at distance 0, its label is 0. The same holds for all queries if the box itself has outgrown the floats.

    Queries are bisected in groups that stand at the same box. How many groups there are depends on the
    distances, so the time tells about them: what serves answers uses `certify_one`.

    Guarantees:
        P1 and P2 of `Certificate`. A query's result does not depend on the queries beside it.
    """
    blocks = torch.split(queries, network.block_rows) if len(queries) else ()
    with workers() as pool:
        parts = list(pool.map(lambda block: _bisect_groups(network, ladder, block), blocks))
    if not parts:
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    return torch.cat([labels for labels, _ in parts]), torch.cat([ranks for _, ranks in parts])


def certify_one(network: Network, ladder: Ladder, query: Float[Tensor, "1 ..."]) -> tuple[int, int]:
    """Return label and stable distance of one query, with work that does not depend on the outcome.

    Guarantees:
        Every query is evaluated in the same number of boxes: 1 + ceil(log2(len(ladder))), each time with
        the same operations.
    """
    farthest = len(ladder) - 1
    require_ieee()
    with no_grad_no_autocast():
        labels, agreed = _nominal(network, ladder[0], query)
        position = 0
        for bit in reversed(range(farthest.bit_length())):
            candidate = position + (1 << bit)
            found = _agreed_label(network, ladder[min(candidate, farthest)], query)
            stable = bool((found == agreed) & (agreed != NONE))
            position = candidate if stable and candidate <= farthest else position
    return int(labels), position


def _bisect_groups(network: Network, ladder: Ladder, queries: Tensor) -> tuple[Labels, Labels]:
    """Bisect all queries at once; those that stand at the same box are evaluated together."""
    with no_grad_no_autocast():
        labels, agreed = _nominal(network, ladder[0], queries)
        least = torch.zeros_like(labels)
        most = torch.where(agreed == NONE, 0, len(ladder) - 1)
        while bool((least < most).any()):
            middle = (least + most + 1) // 2
            for rank in torch.unique(middle[least < most]).tolist():
                rows = torch.nonzero((middle == rank) & (least < most))[:, 0]
                stable = _agreed_label(network, ladder[rank], queries[rows]) == agreed[rows]
                least[rows[stable]] = rank
                most[rows[~stable]] = rank - 1
    return labels, least


def _nominal(network: Network, bounds: ParameterBounds, queries: Tensor) -> tuple[Labels, Labels]:
    """Return the nominal model's labels, and the same with NONE for those that no box can agree with."""
    outputs = _outputs(network, bounds, queries)
    agreed = _agreement(outputs, bounds)
    settled = outputs.finite.cpu() & (not bounds.outgrown)
    return torch.where(agreed == NONE, torch.where(settled, _fallback(outputs), 0), agreed), agreed


def _agreed_label(network: Network, bounds: ParameterBounds, queries: Tensor) -> Labels:
    return _agreement(_outputs(network, bounds, queries), bounds)


def _outputs(network: Network, bounds: ParameterBounds, queries: Tensor) -> Outputs:
    box = network.box(bounds.box)
    return network.outputs_of(network.forward(network.enter(queries), box), box)


def _agreement(outputs: Outputs, bounds: ParameterBounds) -> Labels:
    """Return the one label that every model in the box gives, strictly; NONE if there is none or a number overflowed."""
    logits, lead = outputs.logits, outputs.pairs
    count = logits.shape[1]
    if count == 1:
        label = (logits.lower[:, 0] > 0).long()
        strict = (logits.lower[:, 0] > 0) | (logits.upper[:, 0] < 0)
    else:
        first, second = pairs(count, lead.lower.device)
        wins = torch.zeros(len(lead.lower), count, dtype=torch.int64, device=lead.lower.device)
        wins.index_add_(1, first, (lead.lower > 0).long())
        wins.index_add_(1, second, (lead.upper < 0).long())
        most, label = wins.max(1)
        strict = most == count - 1
    return torch.where(strict & outputs.finite & (not bounds.outgrown), label, NONE).cpu()


def _fallback(outputs: Outputs) -> Labels:
    """Return the nominal label at a tie: the lowest index of the largest logit; of one logit: 0, since it is not above 0."""
    logits = outputs.logits.lower
    return (logits == logits.amax(1, keepdim=True)).long().argmax(1).cpu()
