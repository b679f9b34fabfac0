"""Who asks: access keys of the ledger, tokens of an OIDC issuer, and rate limits."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import anyio
import httpx2
import jwt

from ..errors import AccessDenied, RateLimited
from ..ledger import AccessKey, Ledger, list_keys
from ..ledger.accounts import Account
from ..ledger.keys import ANALYST, OWNER, TOKEN_PREFIX, find_key, require_valid
from .problems import Forbidden
from .settings import ServiceSettings, is_secure

_LOG = logging.getLogger(__name__)

_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"]
_LONGEST_TOKEN = 8192
_REFUSED = "this token is not valid here; get a new one from the issuer"
_KEYS_LAST = 300.0  # seconds after which keys are not used any more
_REFRESH = 150.0  # seconds after which they are fetched again; a removed one is then forgotten
_FETCH_AGAIN = 30.0  # seconds after which an unknown key, or a failure, makes us fetch again
_TIMEOUT = 5.0
_THREADS = 4  # for tokens alone, so that a slow issuer delays nobody who has an access key


class TokenCheck:
    """Checks tokens of one issuer for one audience.

    Guarantees:
        A token is accepted only if a key that the issuer published in the last five minutes signed
        it, for this audience, and it has not expired. If the issuer cannot be reached, tokens are
        refused once its keys are too old. Forged tokens make us fetch keys at most twice a minute.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._issuer, self._audience = settings.oidc_issuer.rstrip("/"), settings.oidc_audience
        self._owners = set(settings.oidc_owners)
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._fetching = threading.Lock()
        self._keys: list[jwt.PyJWK] = []
        self._fetched = self._tried = -float("inf")

    async def check(self, token: str) -> tuple[str, bool]:
        """Return the subject of a token, and whether it has the owner's role.

        Raises:
            AccessDenied: If the token is not valid. The message is the same in all cases.
        """
        if len(token) > _LONGEST_TOKEN:
            raise AccessDenied(_REFUSED)
        return await anyio.to_thread.run_sync(self._checked, token, limiter=self._threads)

    def _checked(self, token: str) -> tuple[str, bool]:
        try:
            claims = self._claims(token)
        except (
            jwt.PyJWTError,
            httpx2.HTTPError,
            ValueError,
            TypeError,
            KeyError,
            RecursionError,  # JSON that is nested too deeply
        ) as error:
            raise AccessDenied(_REFUSED) from error
        subject = claims.get("sub")
        if not isinstance(subject, str) or not re.fullmatch(r"[\x21-\x7e]{1,150}", subject):
            raise AccessDenied(_REFUSED)
        return subject, subject in self._owners

    def _claims(self, token: str) -> dict[str, Any]:
        head = jwt.get_unverified_header(token)
        if head.get("alg") not in _ALGORITHMS:
            raise jwt.InvalidAlgorithmError
        claims: dict[str, Any] = jwt.decode(
            token,
            self._key(head.get("kid")),
            algorithms=_ALGORITHMS,
            audience=self._audience,
            issuer=[self._issuer, f"{self._issuer}/"],
            leeway=30,
            options={"require": ["exp", "iss", "aud", "sub"]},
        )
        return claims

    def _key(self, name: str | None) -> jwt.PyJWK:
        """Return the issuer's key with this name; a token without one may use the only key."""
        age = time.monotonic() - self._fetched
        if self._named(name) is None or age > _REFRESH:
            # As long as the keys can be used, nobody waits for whoever is fetching new ones: a slow
            # issuer must not fill up the threads.
            self._refresh(wait=age > _KEYS_LAST)
        if time.monotonic() - self._fetched > _KEYS_LAST:
            raise jwt.PyJWKClientError("the issuer's keys are too old")
        key = self._named(name)
        if key is None:
            raise jwt.PyJWKClientError("the issuer has no such key, or several and none is named")
        return key

    def _named(self, name: str | None) -> jwt.PyJWK | None:
        fitting = [key for key in self._keys if name is None or key.key_id == name]
        return fitting[0] if len(fitting) == 1 else None

    def _refresh(self, wait: bool) -> None:
        """Fetch the keys, if that was not tried just now; `wait` for another who does."""
        if not self._fetching.acquire(timeout=2 * _TIMEOUT if wait else 0):
            return
        try:
            if time.monotonic() - self._tried > _FETCH_AGAIN:
                self._tried = time.monotonic()
                self._keys, self._fetched = self._published(), time.monotonic()
        except Exception as error:  # whatever the issuer sent; the old keys last for a while
            _LOG.warning("the issuer's keys cannot be fetched: %s", type(error).__name__)
        finally:
            self._fetching.release()

    def _published(self) -> list[jwt.PyJWK]:
        """Return the keys with which the issuer says that it signs."""
        about = _fetch(f"{self._issuer}/.well-known/openid-configuration")
        if str(about["issuer"]).rstrip("/") != self._issuer:
            raise jwt.PyJWKClientError("the discovery document names another issuer")
        place = str(about["jwks_uri"])
        if not is_secure(place):
            raise jwt.PyJWKClientError("the issuer publishes its keys without https")
        found = jwt.PyJWKSet.from_dict(_fetch(place))
        return [key for key in found.keys if key.public_key_use in (None, "sig")]


def _fetch(url: str) -> dict[str, Any]:
    response = httpx2.get(url, timeout=_TIMEOUT, follow_redirects=False)
    response.raise_for_status()
    about: dict[str, Any] = response.json()
    return about


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
        """Return keys that were read after this call; concurrent callers share one read."""
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
