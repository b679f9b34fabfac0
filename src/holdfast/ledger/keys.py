"""Access keys: who may ask a service about a data set, and until when.

Keys are entries of the ledger, so nobody can add one, extend it or undo its end without the owner's
key. An entry holds a keyed hash of the secret, which is shown once, when the key is made.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..checks import canonical_name, check_name
from ..errors import AccessDenied, InvalidInput
from .entries import KEY, REVOKE, Entry

if TYPE_CHECKING:
    from .ledger import Ledger
    from .transaction import Transaction

ANALYST, OWNER = "analyst", "owner"
ROLES = (ANALYST, OWNER)
_TEXT = re.compile(r"hf-([0-9a-f]{16})-([A-Za-z0-9_-]{43})")
TOKEN_PREFIX = "oidc:"
"""Names of analysts who come with a token begin with this; no key can have such a name."""

_REFUSED = "this key is not valid here: it is unknown, expired or revoked; ask the owner for one"


@dataclass(frozen=True)
class AccessKey:
    """A key of an analyst or of the owner, without its secret.

    Attributes:
        id: The public part of the key.
        analyst: Who asks with it.
        role: "analyst", or "owner", who may also see the ledger and change the budget.
        digest: A keyed hash of the secret.
        made: When it was made.
        ends: When it ends; None if it does not.
        parent: The id of the key that it replaces; empty if it replaces none.
        revoked: Whether it was revoked; then no clock decides whether it is valid.
    """

    id: str
    analyst: str
    role: str
    digest: str
    made: datetime
    ends: datetime | None
    parent: str = ""
    revoked: bool = False

    @classmethod
    def of(cls, entry: Entry) -> AccessKey:
        """Return the key that an entry of the ledger adds."""
        about = json.loads(entry.about)
        ends = None if about["ends"] is None else datetime.fromisoformat(about["ends"])
        made = datetime.fromisoformat(entry.time)
        who = entry.question, entry.analyst, about["role"], about["digest"]
        return cls(*who, made, ends, about["parent"])

    def as_fields(self) -> list[Any]:
        """Return all fields, ready for JSON."""
        ends = None if self.ends is None else self.ends.isoformat()
        who = self.id, self.analyst, self.role, self.digest
        return [*who, self.made.isoformat(), ends, self.parent, self.revoked]

    @classmethod
    def from_fields(cls, fields: list[Any]) -> AccessKey:
        """Return the key that `as_fields` has described."""
        key_id, analyst, role, digest, made, ends, parent, revoked = fields
        times = datetime.fromisoformat(made), None if ends is None else datetime.fromisoformat(ends)
        return cls(key_id, analyst, role, digest, *times, parent, revoked)

    def ended_by(self, entry: Entry) -> AccessKey:
        """Return the key as it is after an entry that ends it; it never ends later than before."""
        about = json.loads(entry.about)
        ends = datetime.fromisoformat(about["ends"])
        return replace(
            self,
            ends=ends if self.ends is None else min(ends, self.ends),
            revoked=self.revoked or about["revoked"],
        )

    def is_valid(self, now: datetime) -> bool:
        return not self.revoked and (self.ends is None or now < self.ends)

    def as_dict(self) -> dict[str, Any]:
        """Return what may be shown of it: everything but the hash, with times in UTC."""
        return {
            "id": self.id,
            "analyst": self.analyst,
            "role": self.role,
            "made": f"{self.made:%Y-%m-%d %H:%M}",
            "ends": "never" if self.ends is None else f"{self.ends:%Y-%m-%d %H:%M}",
            "valid": self.is_valid(datetime.now(UTC)),
        }


def find_key(hashed: Callable[..., bytes], keys: dict[str, AccessKey], text: str) -> AccessKey:
    """Return the key with this text.

    Args:
        hashed: The ledger's keyed hash, from `Ledger.hasher`.
        keys: The keys of the data set, by id.
        text: What the user sent.

    Raises:
        AccessDenied: If there is no such key, or it has ended. The message is the same in all
            cases, and the secret is compared in constant time.
    """
    parts = _TEXT.fullmatch(text)
    if parts is None:
        raise AccessDenied(_REFUSED)
    found = keys.get(parts[1])
    digest = hashed(*_hashed_parts(parts[1], parts[2])).hex()
    same = hmac.compare_digest(digest, "" if found is None else found.digest)
    if found is None or not same or not found.is_valid(datetime.now(UTC)):
        raise AccessDenied(_REFUSED)
    return found


def require_valid(keys: dict[str, AccessKey], key_id: str) -> AccessKey:
    """Return a key that was found before; raise AccessDenied if it has ended since."""
    found = keys.get(key_id)
    if found is None or not found.is_valid(datetime.now(UTC)):
        raise AccessDenied(_REFUSED)
    return found


def add_key(
    ledger: Ledger,
    dataset: str,
    analyst: str,
    *,
    role: str = ANALYST,
    days: float | None = 90.0,
) -> str:
    """Add an access key to the ledger and return its text, which is not stored anywhere.

    Args:
        ledger: The ledger that holds the budget of the data set.
        dataset: The data set that the key is for.
        analyst: Who asks with it. Two keys of one analyst share recorded answers.
        role: "analyst", or "owner", who may also see the ledger and change the budget.
        days: After how many days the key ends; None: never.

    Raises:
        InvalidInput: If the data set has no budget, or an argument is not valid.
    """
    check_name("dataset", dataset), check_name("analyst", analyst)
    if canonical_name(analyst).startswith(TOKEN_PREFIX):
        raise InvalidInput(f"analyst={analyst!r}: names with {TOKEN_PREFIX} are those of tokens")
    if role not in ROLES:
        raise InvalidInput(f"role={role!r}: expected one of {', '.join(ROLES)}")
    ends = _in_days(days)
    return ledger.transact(lambda transaction: _add(transaction, dataset, analyst, role, ends))


def rotate_key(
    ledger: Ledger,
    dataset: str,
    key_id: str,
    *,
    overlap_hours: float = 24.0,
    days: float | None = None,
) -> str:
    """Add a key like an existing one, end that one soon, and return the new key's text.

    A key can be replaced once; if it is revoked, so is the key that replaces it.

    Args:
        ledger: The ledger.
        dataset: The data set.
        key_id: The id of the key to be replaced.
        overlap_hours: For how long the old key remains valid.
        days: After how many days the new key ends; None: when the old one was to end.

    Raises:
        InvalidInput: If there is no such key, or it was replaced before.
        AccessDenied: If it has ended already.
    """
    if not 0.0 <= overlap_hours <= 24.0 * 365:
        raise InvalidInput(f"overlap_hours={overlap_hours!r}: expected 0 to {24 * 365}")

    chosen = _in_days(days)

    def rotate(transaction: Transaction) -> str:
        keys = transaction.books.account(dataset).keys
        _require_known(keys, key_id, dataset)
        old = require_valid(keys, key_id)
        if any(key.parent == key_id for key in keys.values()):
            raise InvalidInput(f"the key {key_id} was replaced before; rotate the newer one")
        ends = old.ends if days is None else chosen
        text = _add(transaction, dataset, old.analyst, old.role, ends, parent=key_id)
        _end(transaction, dataset, old, datetime.now(UTC) + timedelta(hours=overlap_hours))
        return text

    return ledger.transact(rotate)


def revoke_key(ledger: Ledger, dataset: str, key_id: str) -> None:
    """End a key, and the keys that replaced it, at once, for all processes that use the ledger.

    Args:
        ledger: The ledger.
        dataset: The data set.
        key_id: The id of the key, the first part of its text.

    Raises:
        InvalidInput: If there is no such key.
    """

    def revoke(transaction: Transaction) -> None:
        keys = transaction.books.account(dataset).keys
        _require_known(keys, key_id, dataset)
        line = {key_id}
        for key in list(keys.values()):  # in the order they were made: parents come first
            if key.id in line or key.parent in line:
                line.add(key.id)
                _end(transaction, dataset, key, datetime.now(UTC), revoked=True)

    ledger.transact(revoke)


def list_keys(ledger: Ledger, dataset: str) -> list[AccessKey]:
    """Return all keys of a data set, also those that have ended, in the order they were made."""
    return ledger.transact(
        lambda transaction: list(transaction.books.account(dataset).keys.values())
    )


def _add(
    transaction: Transaction,
    dataset: str,
    analyst: str,
    role: str,
    ends: datetime | None,
    parent: str = "",
) -> str:
    account = transaction.books.account(dataset)
    keys, analyst = account.keys, account.analyst_named(analyst)
    key_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    while key_id in keys:
        key_id = secrets.token_hex(8)
    about = {
        "role": role,
        "digest": transaction.keyed_hash(*_hashed_parts(key_id, secret)).hex(),
        "ends": None if ends is None else ends.isoformat(),
        "parent": parent,
    }
    transaction.add(KEY, account.name, analyst, question=key_id, about=json.dumps(about))
    return f"hf-{key_id}-{secret}"


def _end(
    transaction: Transaction, dataset: str, key: AccessKey, when: datetime, revoked: bool = False
) -> None:
    name = transaction.books.account(dataset).name
    about = json.dumps({"ends": when.isoformat(), "revoked": revoked})
    transaction.add(REVOKE, name, key.analyst, question=key.id, about=about)


def _hashed_parts(key_id: str, secret: str) -> tuple[bytes, ...]:
    return b"access key", key_id.encode(), secret.encode()


def _in_days(days: float | None) -> datetime | None:
    if days is None:
        return None
    if not 0.0 < days <= 3650.0:
        raise InvalidInput(f"days={days!r}: expected a number above 0, at most 3650")
    return datetime.now(UTC) + timedelta(days=days)


def _require_known(keys: dict[str, AccessKey], key_id: str, dataset: str) -> None:
    if key_id not in keys:
        known = ", ".join(keys) or "none"
        raise InvalidInput(f"no key {key_id!r} for {dataset!r}; there are: {known}")
