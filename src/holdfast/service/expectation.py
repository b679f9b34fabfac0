"""The expected accuracy of the answers that are left, for the owner. NOT private."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..accounting import Budget
from ..errors import InvalidInput
from ..ledger import BudgetStatus
from ..mechanisms import AnswerMechanism, BudgetedResponse, StableResponse
from ..preprocessing import read_csv_bytes, read_labels
from ..serving import PrivatePredictor

_COUNTS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
_MOST_ROWS, _MOST_COLUMNS = 5000, 2000


@dataclass(frozen=True)
class Expectation:
    """Expected accuracies on a labelled file.

    `points` holds, for each number of answers, the accuracy if the rest of the budget were planned
    for so many; `now` is the number of answers that are left, with the accuracy that they have.
    `commonest` is the accuracy of always giving the commonest label.
    """

    rows: int
    plain: float
    commonest: float
    points: tuple[tuple[int, float], ...]
    now: tuple[int, float] | None


def expected_accuracy(
    predictor: PrivatePredictor, status: BudgetStatus, content: bytes, label: str
) -> Expectation:
    """Return the expected accuracy of answers on a labelled CSV.

    Args:
        predictor: The predictor whose model and mechanism answer.
        status: The status of the budget.
        content: The bytes of the CSV.
        label: The column of right answers.

    Raises:
        InvalidInput: If the file cannot be read, or nothing is left of the budget.
    """
    model, source = predictor.model, Path("the file")
    if not content:
        raise InvalidInput("the file is empty, or none was chosen; choose a labelled CSV file")
    table = read_csv_bytes(content, str(source), model.preprocessing, _MOST_COLUMNS)
    if len(table) > _MOST_ROWS:
        raise InvalidInput(f"{len(table):,} rows: expected at most {_MOST_ROWS:,}; send fewer")
    labels = read_labels(table, label, source, model.preprocessing, model.classes)
    certificate = model.certify(table)
    if status.remaining <= 0.0:
        raise InvalidInput("nothing is left of the budget, so there is nothing to expect")

    def accuracy(mechanism: AnswerMechanism) -> float:
        return float(mechanism.answer_probability(certificate, labels).mean())

    points = tuple((count, accuracy(_planned(status, count))) for count in _COUNTS)
    now, mechanism = None, predictor.mechanism
    if isinstance(mechanism, AnswerMechanism) and status.answers_left:
        now = (status.answers_left, accuracy(mechanism))
    plain = float((certificate.labels == labels).double().mean())
    commonest = float(labels.bincount().max()) / len(labels)
    return Expectation(len(table), plain, commonest, points, now)


def _planned(status: BudgetStatus, count: int) -> AnswerMechanism:
    """Return the mechanism for what is left of the budget, planned for so many answers."""
    if status.order is None:
        return StableResponse(status.remaining / count)
    rest = Budget(status.budget.epsilon - status.spent, status.budget.delta)
    return BudgetedResponse(rest, count, order=status.order)
