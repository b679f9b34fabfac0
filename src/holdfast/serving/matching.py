"""Whether a model, a mechanism and a budget fit together."""

from __future__ import annotations

from ..errors import InvalidInput
from ..ledger.accounts import Account
from ..mechanisms import Mechanism
from ..models import CertifiedModel
from .charging import Charging, make_charging


def matching_charging(
    model: CertifiedModel, mechanism: Mechanism | None, account: Account
) -> Charging:
    """Return how the mechanism, or the budget's own, is charged for answers of the model.

    Raises:
        InvalidInput: If the neighbour relations differ, or the budget does not cover one charge.
    """
    terms, chosen = account.terms, make_charging(mechanism, account.terms)
    if model.neighbours is not terms.neighbours:
        raise InvalidInput(
            f"the model is certified per {model.neighbours.unit}, under "
            f"{model.neighbours.value!r}, but the budget of {account.name!r} is counted "
            f"per {terms.neighbours.unit}, under {terms.neighbours.value!r}; "
            "train under the same relation"
        )
    each = chosen.unit_charge(terms)
    if each.leak > terms.limit.leak:
        raise InvalidInput(
            f"the mechanism has a delta of its own, but the budget of {account.name!r} "
            f"reserves only {terms.reserve:g} for that; "
            "create the budget with a larger reserve="
        )
    if each.loss > terms.limit.loss:
        raise InvalidInput(
            f"one charge of this mechanism, {terms.meter.as_float(each.loss):g} in "
            f"{terms.meter.name}, is more than the whole budget of "
            f"{account.name!r} allows, {terms.meter.as_float(terms.limit.loss):g}; use a "
            "smaller epsilon, or one made for more queries"
        )
    return chosen
