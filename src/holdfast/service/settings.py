"""Settings of the service, handed from `holdfast serve` to its worker processes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from ..checks import as_float_or_nan, check_integer
from ..errors import InvalidInput

MOST_QUERIES, MOST_COLUMNS, LONGEST_TEXT = 10_000, 10_000, 1000
"""The most queries of a request, the most cells of a query, and the longest text in one."""

VARIABLE = "HOLDFAST_SERVICE"
"""The environment variable in which worker processes find the settings."""


@dataclass(frozen=True)
class ServiceSettings:
    """What the service serves, and its limits.

    Args:
        model: The saved model.
        ledger: The address of the ledger that holds the budget of the model's data set.
        home: The folder of the owner's key; as for `hf.Ledger`.
        require_signature: Whether to refuse a model that was not signed with the ledger's key.
        response_step: Answers are sent at multiples of this many seconds after the request arrived;
            0: at once.
        max_queries: The largest number of queries in a request.
        max_body: The largest body of a request, in bytes.
        answers_per_minute: How many new answers an analyst may get in a minute, from all workers
            together; 0: any number.
        requests_per_minute: How many requests an analyst may make in a minute, of each worker; 0:
            any number.
        oidc_issuer: The issuer of bearer tokens that are accepted beside keys; empty: none.
        oidc_audience: The audience that such a token must name.
        oidc_owners: The subjects whose tokens have the role of the owner.
        https: Whether browsers reach the service by https, so that cookies are sent only over it.
        workers: The number of worker processes.
    """

    model: str
    ledger: str
    home: str | None = None
    require_signature: bool = False
    response_step: float = 0.05
    max_queries: int = 1000
    max_body: int = 2_000_000
    answers_per_minute: int = 600
    requests_per_minute: int = 6000
    oidc_issuer: str = ""
    oidc_audience: str = ""
    oidc_owners: tuple[str, ...] = ()
    https: bool = False
    workers: int = 1

    def __post_init__(self) -> None:
        if not 0.0 <= as_float_or_nan(self.response_step) <= 10.0:
            raise InvalidInput(
                f"response_step={self.response_step!r}: expected seconds, from 0 to 10"
            )
        if self.max_queries > MOST_QUERIES:
            raise InvalidInput(f"max_queries={self.max_queries}: expected at most {MOST_QUERIES}")
        for name, least in _LEAST.items():
            check_integer(name, getattr(self, name), least)
        if bool(self.oidc_issuer) != bool(self.oidc_audience):
            raise InvalidInput(
                f"oidc_issuer={self.oidc_issuer!r} and oidc_audience={self.oidc_audience!r}: "
                "expected both or neither; a token that names no audience could be meant for "
                "another service"
            )
        if self.oidc_issuer and not is_secure(self.oidc_issuer):
            raise InvalidInput(f"oidc_issuer={self.oidc_issuer!r}: expected an https:// address")

    def export(self) -> None:
        """Write the settings to the environment, for worker processes."""
        os.environ[VARIABLE] = json.dumps(asdict(self))

    @classmethod
    def imported(cls) -> ServiceSettings:
        """Return the settings that `export` wrote."""
        about: dict[str, Any] = json.loads(os.environ[VARIABLE])
        return cls(**{**about, "oidc_owners": tuple(about["oidc_owners"])})


def is_secure(address: str) -> bool:
    """Return whether an address is https, or is this machine."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    at_home = parts.scheme == "http" and parts.netloc.partition(":")[0] == "127.0.0.1"
    return (parts.scheme == "https" or at_home) and "@" not in parts.netloc


_LEAST = {
    "max_queries": 1,
    "max_body": 1000,
    "answers_per_minute": 0,
    "requests_per_minute": 0,
    "workers": 1,
}
