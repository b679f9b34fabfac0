"""Tokens: bearer tokens of an OIDC issuer, checked against the keys that it publishes (JWKS)."""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import Any

import anyio
import httpx2
import jwt

from ..errors import AccessDenied
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
            raise jwt.PyJWKClientError("the issuer names itself otherwise")
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
