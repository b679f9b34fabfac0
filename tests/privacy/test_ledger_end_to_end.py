"""The tiny data sets of test_end_to_end, run through the whole predictor and ledger.

An adversary with two names sees labels, costs, previews of costs, remaining budgets and refusals,
and chooses each question after the previous answers. Another analyst asks a question that is itself
a secret of the data. The possible gain is computed exactly, from what the real system shows.

The system is run on every sequence of questions and answers, with the answers forced through its
source of randomness; their probabilities under each data set follow from the tables.
"""

from __future__ import annotations

import itertools
import shutil
from collections import defaultdict
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
import torch

import holdfast as hf
from holdfast.accounting.arithmetic import SCALE
from holdfast.serving.charging import QueryRequest

from .checker import exp_lower
from .test_end_to_end import KINDS, QUERIES, State, World, model

pytestmark = pytest.mark.usefixtures("no_shape_checks")

Step = tuple[str, int, int]  # the analyst, the query, and the label if one is drawn
Paths = dict[tuple[Step, ...], int]  # weights of histories that the adversary cannot tell apart

RETRAIN: Step = ("the owner", 0, 0)
ADVERSARY = [("eve", 0), ("eve", 1), ("mallory", 0)]
ASKS = 3
ANSWERS = 2  # the number that the budget allows
CASES = {"pure": (hf.Budget(1.0), 0.0), "renyi": (hf.Budget(1.0, 0.01), 0.01)}


class Forced:
    """An entropy source that forces the next answer."""

    def __init__(self) -> None:
        self.keep = True

    def draw(self) -> int:
        return SCALE - 1 if self.keep else 0


def trained(data: tuple[int, ...]) -> hf.Certified:
    x = torch.tensor([[float(KINDS[one][0])] for one in data])
    y = torch.tensor([KINDS[one][1] for one in data])
    recipe = hf.Recipe(epochs=2, learning_rate=2.0, decay=2.0, clip=0.1, batch_size=5, seed=1)
    return hf.train(model(), x, y, recipe, max_distance=3, dataset="tiny", progress=False)


class CachedPredictor:
    """A predictor whose certificates are computed once, and the labels of its model."""

    def __init__(
        self,
        certified: hf.Certified,
        ledger: hf.Ledger,
        kind: type[hf.PrivatePredictor],
        entropy: Forced,
    ) -> None:
        self.labels = certified.predict(QUERIES).tolist()
        self.predictor = kind(certified, ledger, entropy=entropy)
        certificates = {row.numpy().tobytes(): certified.certify(row[None]) for row in QUERIES}
        self.predictor._certify = lambda features: certificates[features.numpy().tobytes()]


class SystemReplay:
    """The real system, in any state that a sequence of steps can reach.

    `data` lists the records of the first training and of every retraining.
    """

    def __init__(
        self,
        folder: Path,
        data: list[tuple[int, ...]],
        budget: hf.Budget,
        kind: type[hf.PrivatePredictor],
    ) -> None:
        self._folder, self._entropy, self._number = folder, Forced(), itertools.count()
        start = self._copy(None)
        ledger = self._open(start)
        ledger.create_budget("tiny", budget, queries=ANSWERS)
        self._actors = [
            CachedPredictor(trained(records), ledger, kind, self._entropy) for records in data
        ]
        ledger.close()
        self.outcome = self._actors[0].predictor.mechanism.table().outcome
        self._known = {(): (start, None)}

    def observe(self, path: tuple[Step, ...]) -> object:
        """Return what the analyst of the last step sees."""
        if path not in self._known:
            self.observe(path[:-1])
            folder = self._copy(self._known[path[:-1]][0])
            actor = self._actors[sum(who == RETRAIN[0] for who, _, _ in path)]
            self._known[path] = (
                folder,
                "retrained" if path[-1] == RETRAIN else self._step(folder, actor, path[-1]),
            )
        return self._known[path][1]

    def _step(self, folder: Path, actor: CachedPredictor, step: Step) -> object:
        """Preview the cost, then ask, and return everything that is shown."""
        who, number, label = step
        self._entropy.keep = label == actor.labels[number]
        actor.predictor.ledger = ledger = self._open(folder)
        try:
            about = actor.predictor.preview(QUERIES[number], analyst=who)
            shown = (about, actor.predictor.other_models_spent())
            answer = actor.predictor.ask(QUERIES[number], analyst=who)
            return *shown, answer.label, answer.cost, answer.remaining
        except hf.BudgetExhausted as error:
            return *shown, str(error)
        finally:
            ledger.close()

    def _copy(self, folder: Path | None) -> Path:
        new = self._folder / str(next(self._number))
        new.mkdir() if folder is None else shutil.copytree(folder, new)
        return new

    def _open(self, folder: Path) -> hf.Ledger:
        ledger = hf.Ledger(f"sqlite:///{folder}/ledger.db", home=folder / "home")
        # Database and home are copied together, into another history: no other copy is in use.
        ledger._database.is_copy_of = lambda *_: False
        return ledger


class Adversary:
    """Computes the largest gain beyond e^epsilon between two data sets.

    It is given the states of the queries under each of them.
    """

    def __init__(self, stage: SystemReplay, epsilon: float) -> None:
        self._stage, self._ratio = stage, exp_lower(Fraction(epsilon))

    def gain(self, here: State, there: State, secrets: tuple[int, int]) -> Fraction:
        @cache
        def outcome(side: int, number: int) -> list[int]:
            return self._stage.outcome(*(here, there)[side][number])

        def after(paths: Paths, side: int, who: str, number: int) -> dict[object, Paths]:
            """Return the histories after a step, grouped by what the adversary sees of it."""
            seen: dict[object, Paths] = defaultdict(dict)
            for path, weight in paths.items():
                for label in (0, 1):
                    longer = (*path, (who, number, label))
                    sight = self._stage.observe(longer)
                    seen[sight if who != "ward" else "the ward asked"][longer] = (
                        weight * outcome(side, number)[label]
                    )
            return seen

        def best(left: int, p: Paths, q: Paths) -> int:
            if left == 0:
                return max(
                    0,
                    sum(p.values()) * self._ratio.denominator
                    - sum(q.values()) * self._ratio.numerator,
                )
            gains = []
            for who, number in [*ADVERSARY, ("ward", None)]:
                ours = after(p, 0, who, secrets[0] if number is None else number)
                theirs = after(q, 1, who, secrets[1] if number is None else number)
                gains.append(
                    sum(
                        best(left - 1, ours.get(sight, {}), theirs.get(sight, {}))
                        for sight in {*ours, *theirs}
                    )
                )
            return max(gains)

        scale = sum(outcome(0, 0)) ** ASKS
        return Fraction(best(ASKS, {(): 1}, {(): 1}), self._ratio.denominator * scale)


def distinct_pairs() -> set[tuple[State, State]]:
    return {(first[:2], second[:2]) for first, second in World("add_remove", 1, largest=6).pairs()}


def worst(
    folder: Path, case: str, kind: type[hf.PrivatePredictor], pairs: set[tuple[State, State]]
) -> Fraction:
    budget, _ = CASES[case]
    adversary = Adversary(SystemReplay(folder, [(0, 3)], budget, kind), budget.epsilon)
    return max(
        adversary.gain(*pair, secrets) for pair in pairs for secrets in ((0, 1), (1, 0), (0, 0))
    )


@pytest.mark.parametrize("case", CASES)
def test_the_whole_system_is_private(tmp_path: Path, case: str, figures: dict[str, str]) -> None:
    pairs = distinct_pairs()
    assert {distance for pair in pairs for state in pair for _, distance in state} == {0, 1, 2, 3}
    gained = worst(tmp_path, case, hf.PrivatePredictor, pairs)
    assert gained <= CASES[case][1]
    figures[f"through predictor and ledger, {case}"] = (
        f"{len(pairs) // 2} distinct pairs of neighbours, {ASKS} questions of which the budget "
        f"allows {ANSWERS}: largest delta {float(gained):.2g}"
    )


@pytest.mark.parametrize("data", [(0, 0, 0, 0, 3, 3), (1, 2), (0, 1, 2, 3)], ids=str)
def test_what_is_shown_does_not_depend_on_the_data(tmp_path: Path, data: tuple[int, ...]) -> None:
    """The same sequence of questions and labels looks the same on all data sets."""
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    one = SystemReplay(tmp_path / "one", [(0, 3)], CASES["pure"][0], hf.PrivatePredictor)
    other = SystemReplay(tmp_path / "other", [data], CASES["pure"][0], hf.PrivatePredictor)
    steps = [(*who, label) for who in [*ADVERSARY, ("ward", 1)] for label in (0, 1)]
    for path in itertools.product(steps[::3], steps, steps[1::3]):
        assert one.observe(path) == other.observe(path)


class AnswersBeforeCharging(hf.PrivatePredictor):
    """A broken predictor that answers even if the answer cannot be charged."""

    def ask(self, queries: object, *, analyst: str = "owner") -> object:
        features, _ = self.features_of(queries)
        (label,) = self._charging.draw(self._certify(features), self._entropy)
        try:
            return super().ask(queries, analyst=analyst)
        except hf.BudgetExhausted:
            return hf.Answer(label, label, 0.0, 0.0)


class SharesAnswers(hf.PrivatePredictor):
    """A broken predictor that shares recorded answers between analysts, free of charge."""

    def ask(self, queries: object, *, analyst: str = "owner") -> object:
        return super().ask(queries, analyst="everybody")


@pytest.mark.parametrize("kind", [AnswersBeforeCharging, SharesAnswers])
def test_broken_systems_are_caught(tmp_path: Path, kind: type[hf.PrivatePredictor]) -> None:
    assert worst(tmp_path, "pure", kind, distinct_pairs()) > CASES["pure"][1]


def test_questions_are_told_apart_by_analyst(tmp_path: Path) -> None:
    """Recorded answers are kept per analyst, which `SharesAnswers` breaks."""
    ledger = hf.Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_budget("tiny", hf.Budget(1.0), queries=10)
    ledger.transact(lambda work: work.add("answer", "tiny", "eve", question="q", label=1))
    for analyst, new in (("eve", []), ("mallory", ["q"])):
        standing = ledger.last_standing("tiny", analyst, ["q"])
        assert QueryRequest(analyst, "m", "m", ("q",)).unanswered(standing) == new
