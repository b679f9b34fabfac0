"""The stable distance of an ensemble: how many records must move before the vote is lost. (docs/theory/ensembles.md)

Members are trained on disjoint parts of the records, so each move touches one member. Changing member i's vote takes
at least its distance + 1 moves. Ties in the vote go to the larger label.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from ..errors import InvalidInput
from .certificate import Certificate

_NEVER = 1 << 40  # moves: more than any sum of distances


def combine(members: list[Certificate]) -> Certificate:
    """The certificate of the ensemble's vote, from its members' certificates of the same queries.

    Guarantees
    ----------
    P1 and P2 of `Certificate`: the distance is the exact number of moves, less one, that could change the vote if each
    member's distance could be used up in full.
    """
    if len({(member.neighbours, member.classes, len(member)) for member in members}) != 1:
        raise InvalidInput("members' certificates: expected at least one, all of the same queries, relation and number of classes")
    labels = torch.stack([member.labels for member in members], 1)
    costs = torch.stack([member.distances for member in members], 1) + 1
    first = members[0]
    votes = count_votes(labels, first.classes)
    winner = winners(votes)
    kept, rivals = _cheapest(costs, labels == winner[:, None]), torch.full_like(winner, _NEVER)
    for rival in range(first.classes):
        lead = votes.gather(1, winner[:, None])[:, 0] - votes[:, rival] + (winner > rival)
        neither = _cheapest(costs, (labels != winner[:, None]) & (labels != rival))
        price = _price(lead, kept, neither)
        rivals = torch.minimum(rivals, torch.where(winner == rival, _NEVER, price))
    reaches = [member.reach + 1 for member in members if member.reach is not None]
    reach = sum(reaches) - 1 if len(reaches) == len(members) else None
    return Certificate(winner, rivals - 1, first.neighbours, first.classes, all(m.nested for m in members), votes, reach)


def _price(lead: Int64[Tensor, " queries"], kept: Tensor, neither: Tensor) -> Int64[Tensor, " queries"]:
    """The fewest moves that turn `lead` votes: a vote of the winner's, given to the rival, counts two; any other counts one."""
    best = torch.full_like(lead, _NEVER)
    for taken in range(kept.shape[1]):
        rest = (lead - 2 * taken).clamp(min=0)
        price = kept[:, taken] + neither.gather(1, rest.clamp(max=neither.shape[1] - 1)[:, None])[:, 0]
        best = torch.where(rest < neither.shape[1], torch.minimum(best, price), best)
    return best


def _cheapest(costs: Int64[Tensor, "queries members"], chosen: Tensor) -> Int64[Tensor, "queries prices"]:
    """The cost of the 0, 1, 2, ... cheapest among the chosen members; _NEVER where there are not so many."""
    ordered = torch.where(chosen, costs, _NEVER).sort(1).values.cumsum(1).clamp(max=_NEVER)
    return torch.cat([torch.zeros_like(ordered[:, :1]), ordered], 1)


def count_votes(labels: Int64[Tensor, "queries members"], classes: int) -> Int64[Tensor, "queries classes"]:
    """How many members vote for each class."""
    return torch.stack([(labels == label).sum(1) for label in range(classes)], 1)


def winners(votes: Int64[Tensor, "queries classes"]) -> Int64[Tensor, " queries"]:
    """The label with the most votes; ties go to the larger label."""
    most = votes.amax(1, keepdim=True)
    return votes.shape[1] - 1 - (votes == most).flip(1).long().argmax(1)


def paper_distance(members: list[Certificate]) -> Certificate:
    """The paper's distance for two classes, clamped at 0: for simulated comparison only.

    It jumps between neighbouring data sets (nested=False), so mechanisms that use distances refuse to release from it.
    """
    ours = combine(members)
    assert ours.votes is not None
    flips = (ours.votes[:, 1] - ours.votes[:, 0]).abs().add(1) // 2
    distances = torch.stack([member.distances for member in members], 1).sort(1).values.cumsum(1)
    distances = torch.cat([torch.zeros_like(distances[:, :1]), distances], 1)
    paper = (distances.gather(1, flips[:, None])[:, 0] + flips - 1).clamp(min=0)
    return Certificate(ours.labels, paper, ours.neighbours, ours.classes, nested=False, votes=ours.votes)
