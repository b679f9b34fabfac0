"""PrivatePredictor: private answers from a certificate, a mechanism and a ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from ..errors import HoldfastError, InvalidInput
from ..ledger import Ledger
from ..ledger.transaction import Transaction
from ..mechanisms import Mechanism
from ..mechanisms.table import SYSTEM, Entropy
from ..models import CertifiedModel
from ..models.saved import check_signature
from .answering import Answering
from .answers import Answer, Preview, answers_like
from .requests import PredictionRequest

Cell = str | float | bool | None


class PrivatePredictor(Answering):
    """Private answers from a trained model or ensemble, charged to the budget of its data set.

    Args:
        model: What `train`, `train_ensemble` or `load` returned.
        ledger: The ledger that holds the budget of the model's data set.
        mechanism: By default the one that the budget was planned with. A mechanism that the budget
            cannot count, or for which it does not allow a single charge, is refused.
        entropy: The source of randomness; the operating system, except in tests.
        require_signature: Whether to refuse a model that was not saved with `save(path,
            ledger=ledger)` and loaded from that file. A signature of this ledger is checked in any
            case.

    Raises:
        InvalidInput: If model, mechanism and budget do not fit together.
        DamagedFile: If the model is not the one that was signed.
        TamperedLedger: If the ledger is not what was written to it.
        LedgerUnavailable: If the ledger cannot be reached.

    Guarantees:
        All answers together, to all analysts and from all models of the data set, are
        differentially private at the budget. An answer is returned only after it and its charge are
        on disk. If the same analyst asks the same query again, the recorded answer is returned free
        of charge; another analyst pays and gets an answer that is drawn anew. The number of boxes
        evaluated and of random bits drawn is the same for stable and unstable queries, and nothing
        is evaluated for a recorded answer.

    Example:
        >>> import holdfast as hf, torch
        >>> x, y = torch.tensor([[-1.0], [1.0]] * 50), torch.tensor([0, 1] * 50)
        >>> recipe = hf.Recipe(batch_size=100)
        >>> model, options = torch.nn.Linear(1, 2), {"dataset": "ward-7", "progress": False}
        >>> certified = hf.train(model, x, y, recipe, max_distance=5, **options)
        >>> ledger = hf.Ledger("sqlite:///ledger.db", home="keys")
        >>> status = ledger.create_budget("ward-7", hf.Budget(1.0), queries=10)
        >>> predictor = hf.PrivatePredictor(certified, ledger)
        >>> predictor.ask([1.0], analyst="ada").cost
        0.1
    """

    def __init__(
        self,
        model: CertifiedModel,
        ledger: Ledger,
        *,
        mechanism: Mechanism | None = None,
        entropy: Entropy = SYSTEM,
        require_signature: bool = False,
    ) -> None:
        if not isinstance(model, CertifiedModel):
            raise InvalidInput(
                f"model is a {type(model).__name__}: "
                "expected what hf.train, hf.train_ensemble or hf.load returned"
            )
        if not isinstance(ledger, Ledger):
            raise InvalidInput(f"ledger is a {type(ledger).__name__}: expected an hf.Ledger")
        check_signature(model, ledger, require_signature)
        super().__init__(model, ledger, mechanism, entropy)

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism that answers."""
        return self._charging.mechanism

    @overload
    def ask(self, queries: Sequence[float], *, analyst: str = ...) -> Answer: ...
    @overload
    def ask(self, queries: Mapping[str, Cell], *, analyst: str = ...) -> Answer: ...
    @overload
    def ask(self, queries: Sequence[Sequence[float]], *, analyst: str = ...) -> list[Answer]: ...
    @overload
    def ask(self, queries: Mapping[str, list[Any]], *, analyst: str = ...) -> list[Answer]: ...
    @overload
    def ask(self, queries: object, *, analyst: str = ...) -> Any: ...

    def ask(self, queries: object, *, analyst: str = "owner") -> Any:
        """Answer one query or several, after charging them to the budget.

        Args:
            queries: One query (a row of numbers, or a mapping from columns to cells), or several
                (an array or tensor with one row per query, a table, or a mapping from columns to
                lists).
            analyst: Who asks. The same question by the same analyst is charged once.

        Returns:
            One answer for one query, and a list of answers for several; for a data frame of pandas
            or polars, a frame of the same kind with a column for each field of an answer.

        Raises:
            BudgetExhausted: If the budget does not cover all new queries; then none is answered.
                The exception is a SparseVector, whose cost is not known beforehand: what it answers
                before the budget ends is recorded, and is free to ask again.
            InvalidInput: If the queries do not have the shape of a record.
            TamperedLedger: If the ledger is not what was written to it; nothing is answered.
            LedgerUnavailable: If the ledger cannot be reached; nothing is answered.
        """
        answers, one = self._answer(queries, analyst)
        return answers[0] if one else answers_like(queries, answers)

    def ask_all(self, queries: object, *, analyst: str = "owner") -> list[Answer]:
        """Answer queries as `ask` does, and return a list whatever kind of table they are in.

        Args:
            queries: As for `ask`.
            analyst: As for `ask`.
        """
        return self._answer(queries, analyst)[0]

    def _answer(self, queries: object, analyst: str) -> tuple[list[Answer], bool]:
        """Return the answers after charging them, and whether there was a single query."""
        request = PredictionRequest(queries, analyst)
        result = self.ask_together([request])[0]
        if isinstance(result, HoldfastError):
            raise result
        return result, request.is_single

    def preview(self, queries: object, *, analyst: str = "owner") -> Preview:
        """Return what `ask` would cost; nothing is answered or charged.

        Args:
            queries: As for `ask`.
            analyst: As for `ask`.
        """
        asked = self._asked(self.features_of(queries)[0], PredictionRequest(queries, analyst))

        def look(transaction: Transaction) -> Preview:
            standing = self._standing(asked, transaction)
            account = standing.account
            shown, left = account.terms.meter.as_float, account.remaining(asked.analyst)
            cost, new = self._charging.cost(standing, asked), len(asked.unanswered(standing))
            return Preview(
                shown(cost.loss),
                new,
                shown(left.loss),
                self._charging.unit_charge(account.terms).times_in(left),
            )

        return self.ledger.transact(look)

    def cost_of_answer(self) -> float:
        """Return what one new answer costs; for a SparseVector, one session."""

        def look(transaction: Transaction) -> float:
            terms = transaction.books.account(self.model.dataset).terms
            return terms.meter.as_float(self._charging.unit_charge(terms).loss)

        return self.ledger.transact(look)

    def other_models_spent(self) -> bool:
        """Return whether answers of other training runs were charged to this data set's budget."""
        dataset, own = self.model.dataset, {self.model.run_id}
        return self.ledger.transact(
            lambda transaction: bool(transaction.books.account(dataset).models - own)
        )
