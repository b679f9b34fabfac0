"""Authentication: who asks, by an access key of the ledger or by a token of an OIDC issuer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio

from ..errors import AccessDenied, RateLimited
from ..ledger import AccessKey, Ledger, list_keys
from ..ledger.access_keys import ANALYST, OWNER, TOKEN_PREFIX, find_key, require_valid
from ..ledger.accounts import Account
from .problems import Forbidden
from .settings import ServiceSettings
from .tokens import TokenCheck

_REFRESH_SECONDS = 0.2  # at most this often, an unknown key makes a worker read the ledger again
_NO_KEY = "there is no key; send the header `Authorization: Bearer KEY`"


@dataclass(frozen=True)
class Principal:
    """Who asks: an analyst or the owner. `key_id` is empty if they came with a token."""

    analyst: str
    role: str
    key_id: str = ""

    @property
    def is_owner(self) -> bool:
        return self.role == OWNER

    def require_owner(self) -> None:
        """Raise Forbidden unless this is the owner."""
        if not self.is_owner:
            raise Forbidden(f"the key of {self.analyst!r} has the role {self.role!r}")

    def require_valid(self, account: Account) -> None:
        """Raise AccessDenied if the key has ended since; called in the ledger's transaction."""
        if self.key_id:
            require_valid(account.keys, self.key_id)


class Authentication:
    """Checks keys and tokens.

    Keys are checked against the ledger as this process last saw it, and again in the transaction
    that charges or reads, so that a revoked key is refused at once by all workers.
    """

    def __init__(self, ledger: Ledger, dataset: str, settings: ServiceSettings) -> None:
        self._ledger, self._dataset = ledger, dataset
        self._hashed = ledger.hasher()  # taken once, so that the event loop waits for no lock
        self._tokens = TokenCheck(settings) if settings.oidc_issuer else None
        self._refreshed, self._keys = -math.inf, dict[str, AccessKey]()
        self._refresh = anyio.Lock()

    async def principal(self, credentials: str | None) -> Principal:
        """Return who sent these credentials, the text after `Bearer`."""
        if not credentials:
            raise AccessDenied(_NO_KEY)
        if self._tokens is not None and credentials.count(".") == 2:
            subject, is_owner = await self._tokens.check(credentials)
            # The prefix keeps subjects apart from the analysts of keys.
            return Principal(f"{TOKEN_PREFIX}{subject}", OWNER if is_owner else ANALYST)
        known = self._ledger.last_known(self._dataset)
        if known is not None:
            with suppress(AccessDenied):
                return self._found(known.keys, credentials)
        return self._found(await self._latest_keys(), credentials)

    async def _latest_keys(self) -> dict[str, AccessKey]:
        """Return the keys as they are now or later; all who wait share one look at the ledger."""
        arrived = time.monotonic()
        async with self._refresh:
            if self._refreshed < arrived:
                pause = self._refreshed + _REFRESH_SECONDS - arrived
                await anyio.sleep(max(0.0, pause))
                started = time.monotonic()
                self._keys = await anyio.to_thread.run_sync(self._read_keys)
                self._refreshed = started
        return self._keys

    async def by_id(self, key_id: str) -> Principal:
        """Return who has the key with this id, for a session that began with the key itself."""

        def find() -> Principal:
            key = self._ledger.transact(
                lambda transaction: require_valid(
                    transaction.books.account(self._dataset).keys, key_id
                )
            )
            return Principal(key.analyst, key.role, key.id)

        return await anyio.to_thread.run_sync(find)

    def _read_keys(self) -> dict[str, AccessKey]:
        return {key.id: key for key in list_keys(self._ledger, self._dataset)}

    def _found(self, keys: dict[str, AccessKey], text: str) -> Principal:
        key = find_key(self._hashed, keys, text)
        return Principal(key.analyst, key.role, key.id)


class RateLimits:
    """How often an analyst may ask.

    New answers are counted over all workers, from the ledger's own entries, in the transaction that
    charges: no other table is needed, and a refused request writes nothing. Requests are counted in
    each worker.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._answers, self._requests = settings.answers_per_minute, settings.requests_per_minute
        self._counts: dict[str, tuple[int, int]] = {}

    def count_request(self, analyst: str) -> None:
        """Count a request; raise RateLimited if there were too many in this minute."""
        minute = int(time.monotonic() // 60)
        before, count = self._counts.get(analyst, (minute, 0))
        count = count + 1 if before == minute else 1
        self._counts[analyst] = (minute, count)
        if self._requests and count > self._requests:
            raise RateLimited(
                f"more than {self._requests} requests in this minute; wait for a minute"
            )

    def allow(self, principal: Principal) -> Callable[[Account, int], None]:
        """Return the check that a charge makes in its own transaction."""

        def check(account: Account, new: int) -> None:
            principal.require_valid(account)
            minute = datetime.now(UTC).isoformat(timespec="minutes")[:16]
            count = account.answers_since(principal.analyst, minute)
            if self._answers and new and count + new > self._answers:
                raise RateLimited(
                    f"{new} new answers after {count} in this minute: {self._answers} are allowed; "
                    "nothing was answered or charged; wait for a minute, or ask for fewer"
                )

        return check
