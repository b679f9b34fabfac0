"""The ensemble's distance is 1-Lipschitz and equals an exhaustive search over all states.

The paper's distance is not 1-Lipschitz.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import holdfast as hf
from holdfast.certificates import certify_vote, paper_distance

from .checker import NotPrivate, check_approximate

MOST = 2  # largest distance of a member


class Space:
    """All states of an ensemble: a label and a distance 0..MOST per member.

    One move changes one member by one step.
    """

    def __init__(self, members: int, classes: int) -> None:
        self.members, self.classes, self.shape_text = members, classes, classes * (MOST + 1)
        self.states = np.array(
            list(itertools.product(range(self.shape_text), repeat=members)), dtype=np.int64
        )
        steps = [
            (a, b)
            for a, b in itertools.product(range(self.shape_text), repeat=2)
            if (a // (MOST + 1) == b // (MOST + 1) and abs(a - b) == 1)
            or (a != b and a % (MOST + 1) == 0 == b % (MOST + 1))
        ]
        self.pairs = np.concatenate(
            [self._moved(member, a, b) for member in range(members) for a, b in steps]
        )

    def _moved(self, member: int, a: int, b: int) -> np.ndarray:
        here = np.flatnonzero(self.states[:, member] == a)
        return np.stack([here, here + (b - a) * self.shape_text ** (self.members - 1 - member)], 1)

    def certificates(self) -> list[hf.Certificate]:
        labels, distances = (
            torch.from_numpy(self.states // (MOST + 1)),
            torch.from_numpy(self.states % (MOST + 1)),
        )
        return [
            hf.Certificate(
                labels[:, i].contiguous(), distances[:, i].contiguous(), "add_remove", self.classes
            )
            for i in range(self.members)
        ]

    def searched(self, winner: np.ndarray) -> np.ndarray:
        """Return the number of moves to the nearest state with another winner, minus one.

        Computed by breadth-first search from all such borders at once.
        """
        reach = np.full(len(self.states), -1)
        first, second = self.pairs.T
        reach[first[winner[first] != winner[second]]] = 0
        level = 0
        while (reach < 0).any():
            inside = (
                (reach[first] == level) & (reach[second] < 0) & (winner[first] == winner[second])
            )
            assert inside.any()
            reach[second[inside]] = level + 1
            level += 1
        return reach


SIZES = [(members, classes) for classes in (2, 3) for members in range(1, 6)]


@pytest.mark.parametrize(("members", "classes"), SIZES)
def test_distance_is_exact_and_lipschitz_on_all_states(members: int, classes: int) -> None:
    space = Space(members, classes)
    ours = certify_vote(space.certificates())
    winner, distance = ours.labels.numpy(), ours.distances.numpy()
    first, second = space.pairs.T
    assert (abs(distance[first] - distance[second]) <= 1).all()  # P1
    # P2
    assert (winner[first] == winner[second])[(distance[first] > 0) | (distance[second] > 0)].all()
    assert (distance == space.searched(winner)).all()
    votes = ours.votes.numpy()
    assert (votes.sum(1) == members).all()
    assert all(
        w == max(np.flatnonzero(v == v.max()))
        for w, v in zip(winner[:500], votes[:500], strict=True)
    )


@pytest.mark.parametrize("members", [3, 4, 5])
def test_the_papers_distance_fails_the_same_test(members: int) -> None:
    space = Space(members, 2)
    paper = paper_distance(space.certificates())
    distance, (first, second) = paper.distances.numpy(), space.pairs.T
    assert (abs(distance[first] - distance[second]) > 1).any()
    assert not paper.nested


def test_the_papers_distance_is_caught_by_the_checker_of_tables() -> None:
    """For votes (1, 1, 0) and distances (49, 49, 0), one record moves it from 0 to 50."""
    states = [
        hf.Certificate(torch.tensor([a]), torch.tensor([k]), "add_remove", 2)
        for a, k in [(1, 49), (1, 49), (0, 0), (1, 0)]
    ]
    here, there = states[:3], [*states[:2], states[3]]
    table = hf.mechanisms.CauchyResponse(1.0).table()
    for distance in (certify_vote, paper_distance):
        first, second = distance(here), distance(there)
        pair = [
            ((int(first.labels), int(first.distances)), (int(second.labels), int(second.distances)))
        ]
        if distance is certify_vote:
            check_approximate(table.outcome, pair, 1.0)
        else:
            with pytest.raises(NotPrivate):
                check_approximate(table.outcome, pair, 1.0)


def test_two_classes_agree_with_the_short_formula() -> None:
    """With two classes the distance follows from the cheapest votes for the winner.

    Winner 1 needs floor((n1 - n0) / 2) + 1 flips, winner 0 needs ceil((n0 - n1) / 2).
    """
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        members = int(torch.randint(1, 30, (1,), generator=generator))
        labels = torch.randint(0, 2, (members,), generator=generator)
        distances = torch.randint(0, 100, (members,), generator=generator)
        ones = int(labels.sum())
        zeros = members - ones
        winner = int(ones >= zeros)
        flips = (ones - zeros) // 2 + 1 if winner else -((ones - zeros) // 2)
        expected = int((distances[labels == winner] + 1).sort().values[:flips].sum()) - 1
        parts = [
            hf.Certificate(labels[i : i + 1], distances[i : i + 1], "add_remove", 2)
            for i in range(members)
        ]
        ours = certify_vote(parts)
        assert (int(ours.labels), int(ours.distances)) == (winner, expected)
