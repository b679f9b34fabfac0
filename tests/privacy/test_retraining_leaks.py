"""What an analyst sees of a retraining does not depend on whether the records have changed.

Questions were once identified by a hash of the private model: repeated after a retraining under the
same name, a question was free if the records were the same and charged if one had been added.

The second half is exact, as in test_ledger_end_to_end: an adversary asks, the owner retrains on the
same records or with one added or removed, and the adversary asks again and sees the costs.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import defaultdict
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast as hf

from .checker import exp_lower
from .test_end_to_end import State, World
from .test_ledger_end_to_end import ADVERSARY, CASES, RETRAIN, Paths, SystemReplay

pytestmark = pytest.mark.usefixtures("no_shape_checks")

TENTH = hf.StableResponse(0.1)
QUERY = torch.tensor([0.3, 1.0])
X = torch.randn(40, 2, generator=torch.Generator().manual_seed(3))
Y = (X[:, 0] > 0).long()


def trained(records: int, **options: object) -> hf.Certified:
    torch.manual_seed(0)
    recipe = hf.Recipe(epochs=2, learning_rate=1.0, clip=0.1, batch_size=40)
    return hf.train(
        nn.Sequential(nn.Linear(2, 2)),
        X[:records],
        Y[:records],
        recipe,
        max_distance=2,
        dataset="ward",
        progress=False,
        **options,
    )


def seen(folder: Path, after: int, **options: object) -> list[object]:
    """Return what an analyst sees who asks before and after a retraining on `after` records."""
    folder.mkdir()
    ledger = hf.Ledger(f"sqlite:///{folder}/ledger.db", home=folder / "home")
    ledger.create_budget("ward", hf.Budget(1.0), queries=10)
    first = hf.PrivatePredictor(trained(39, **options), ledger, mechanism=TENTH)
    first.ask(QUERY, analyst="eve")
    # A checkpoint of other records would be refused, so the owner deletes it.
    if "checkpoint" in options and after != 39:
        Path(str(options["checkpoint"])).unlink()
    again = hf.PrivatePredictor(trained(after, **options), ledger, mechanism=TENTH)
    preview = again.preview(QUERY, analyst="eve")
    answer = again.ask(QUERY, analyst="eve")
    return [
        preview,
        answer.cost,
        answer.remaining,
        again.other_models_spent(),
        again.preview(QUERY, analyst="eve"),
    ]


@pytest.mark.parametrize("checkpoint", [False, True], ids=["", "with a checkpoint"])
def test_a_retraining_looks_the_same_whatever_happened_to_the_records(
    tmp_path: Path, checkpoint: bool
) -> None:
    sights = []
    for after in (38, 39, 40):
        options = {"checkpoint": tmp_path / f"checkpoint {after}"} if checkpoint else {}
        sights.append(seen(tmp_path / str(after), after, **options))
    assert sights[0] == sights[1] == sights[2]


def test_every_run_has_an_id_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    one, other = trained(40), trained(40)
    assert len(one.run_id) == 32
    assert one.run_id != other.run_id
    one.save(tmp_path / "model.holdfast")
    assert hf.load(tmp_path / "model.holdfast").run_id == one.run_id


def test_the_ledger_knows_a_model_by_the_id_of_its_run(tmp_path: Path) -> None:
    ledger = hf.Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_budget("ward", hf.Budget(1.0), queries=10)
    model = trained(40)
    predictor = hf.PrivatePredictor(model, ledger, mechanism=TENTH)
    predictor.ask(QUERY, analyst="eve")
    assert ledger.entries()[-1].model == model.run_id
    model.save(tmp_path / "model.holdfast")
    loaded = hf.PrivatePredictor(hf.load(tmp_path / "model.holdfast"), ledger, mechanism=TENTH)
    assert loaded.ask(QUERY, analyst="eve").cost == 0.0


MOVES = ["ask", "retrain", "ask", "ask"]
WITHOUT, WITH = (0, 3), (0, 1, 3)


def gain(
    stages: tuple[SystemReplay, SystemReplay],
    states: tuple[tuple[State, State], tuple[State, State]],
    epsilon: float,
) -> Fraction:
    """Return the largest gain beyond e^epsilon.

    `states` holds, for either world, the states of the queries before and after the retraining.
    """
    ratio = exp_lower(Fraction(epsilon))

    @cache
    def outcome(side: int, later: bool, number: int) -> list[int]:
        return stages[0].outcome(*states[side][later][number])

    def after(paths: Paths, side: int, later: bool, who: str, number: int) -> dict[object, Paths]:
        seen: dict[object, Paths] = defaultdict(dict)
        for path, weight in paths.items():
            for label in (0, 1):
                longer = (*path, (who, number, label))
                seen[stages[side].observe(longer)][longer] = (
                    weight * outcome(side, later, number)[label]
                )
        return seen

    def best(done: int, p: Paths, q: Paths) -> int:
        if done == len(MOVES):
            return max(0, sum(p.values()) * ratio.denominator - sum(q.values()) * ratio.numerator)
        if MOVES[done] == "retrain":
            return best(
                done + 1,
                *({(*path, RETRAIN): weight for path, weight in side.items()} for side in (p, q)),
            )
        gains, later = [], "retrain" in MOVES[:done]
        for who, number in ADVERSARY:
            ours, theirs = after(p, 0, later, who, number), after(q, 1, later, who, number)
            gains.append(
                sum(
                    best(done + 1, ours.get(sight, {}), theirs.get(sight, {}))
                    for sight in {*ours, *theirs}
                )
            )
        return max(gains)

    scale = sum(outcome(0, False, 0)) ** MOVES.count("ask")
    return Fraction(best(0, {(): 1}, {(): 1}), ratio.denominator * scale)


def worst(folder: Path, case: str, kind: type[hf.PrivatePredictor]) -> tuple[Fraction, int]:
    budget = CASES[case][0]
    same, changed = (
        SystemReplay(_made(folder / name), data, budget, kind)
        for name, data in {"same": [WITHOUT, WITHOUT], "changed": [WITHOUT, WITH]}.items()
    )
    pairs = {(first[:2], second[:2]) for first, second in World("add_remove", 1, largest=4).pairs()}
    gains = []
    for here, there in pairs:
        for stages, states in (
            ((same, changed), ((here, here), (here, there))),  # one record changed, or none
            ((changed, same), ((here, there), (here, here))),
            ((same, same), ((here, here), (there, there))),  # a record was always or never present
        ):
            gains.append(gain(stages, states, budget.epsilon))
    return max(gains), len(gains)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("case", CASES)
def test_a_retraining_between_two_asks_is_private(
    tmp_path: Path, case: str, figures: dict[str, str]
) -> None:
    gained, games = worst(tmp_path, case, hf.PrivatePredictor)
    assert gained <= CASES[case][1]
    figures[f"retrained between two asks, {case}"] = (
        f"{games} pairs of histories, all costs visible: largest delta {float(gained):.2g}"
    )


class KnownByFingerprint(hf.PrivatePredictor):
    """A broken predictor that identifies questions by a hash of the model, as was once done."""

    def __init__(self, certified: hf.Certified, ledger: hf.Ledger, **options: object) -> None:
        values = b"".join(
            end.numpy().tobytes() for bounds in certified.ladder for end in bounds.lower.values()
        )
        fingerprint = hashlib.sha256(values).hexdigest()[:32]
        super().__init__(dataclasses.replace(certified, run_id=fingerprint), ledger, **options)


def test_ids_that_follow_from_the_model_are_caught(tmp_path: Path) -> None:
    assert worst(tmp_path, "pure", KnownByFingerprint)[0] > CASES["pure"][1]
