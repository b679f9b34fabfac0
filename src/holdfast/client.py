"""Client: ask a holdfast service from Python, with retries that are never charged twice."""

from __future__ import annotations

import json
import math
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .checks import check_integer
from .errors import (
    AccessDenied,
    BudgetExhausted,
    CopiedLedger,
    HoldfastError,
    InvalidInput,
    LedgerUnavailable,
    RateLimited,
    ServiceUnavailable,
    TamperedLedger,
)

if TYPE_CHECKING:
    from .serving import Answer, Preview

_ERRORS: dict[str, type[HoldfastError]] = {
    "access-denied": AccessDenied,
    "forbidden": AccessDenied,
    "budget-exhausted": BudgetExhausted,
    "invalid-input": InvalidInput,
    "too-large": InvalidInput,
    "not-answered": InvalidInput,
    "rate-limited": RateLimited,
    "ledger-unavailable": LedgerUnavailable,
    "ledger-copied": CopiedLedger,
    "ledger-damaged": TamperedLedger,
}
_WORTH_RETRYING = (LedgerUnavailable, ServiceUnavailable)
_LONGEST_PAUSE = 8.0
_NAMES = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,198}[\x21-\x7e])?")


class Client:
    """A client of a service that `holdfast serve` runs.

    Args:
        url: The address of the service, such as "https://answers.example.org". Plain http is
            accepted for this machine alone.
        key: Your access key, or a function that returns the current one or a token.
        practice: Whether to get made-up answers, free of charge, to try out a program.
        retries: How often a request is repeated if the service or its ledger cannot be reached. All
            repetitions carry one idempotency key, so that nothing is charged twice.
        timeout: How many seconds to wait for a response.

    Raises:
        InvalidInput: If the address is not one of https, or another argument is not valid.
        AccessDenied: If the key is empty, or holds characters that no key has.

    Example:
        >>> import holdfast as hf
        >>> client = hf.Client("https://answers.example.org", "hf-...", practice=True)
        >>> client.close()
    """

    def __init__(
        self,
        url: str,
        key: str | Callable[[], str],
        *,
        practice: bool = False,
        retries: int = 5,
        timeout: float = 60.0,
    ) -> None:
        try:
            import httpx2
        except ModuleNotFoundError:
            raise InvalidInput("hf.Client needs an extra: pip install 'holdfast[client]'") from None

        try:
            parsed = httpx2.URL(url)
        except (TypeError, httpx2.InvalidURL):
            raise InvalidInput(
                f"url={url!r}: expected an address, such as 'https://answers.example.org'"
            ) from None
        if parsed.scheme != "https" and parsed.host not in ("127.0.0.1", "localhost", "::1"):
            raise InvalidInput(f"url={url!r}: expected https://, so that keys stay secret")
        self._key, self._retries = key, check_integer("retries", retries, 0)
        if not callable(key):
            _checked_key(key)
        self._prefix = "/v1/practice/predictions" if practice else "/v1/predictions"
        self._http = httpx2.Client(base_url=str(parsed), timeout=timeout)
        self._library = httpx2

    def ask(self, queries: Any, *, idempotency_key: str | None = None) -> Any:
        """Return the answer to one query, or a list of answers to several.

        Args:
            queries: One query (a mapping from columns to cells, or a row of numbers), or several (a
                list of those, a mapping from columns to lists, or a table of pandas, polars or
                pyarrow, of which only the columns of the schema are sent).
            idempotency_key: A name for this request. If your program is started anew after a
                failure and sends the same name with the same queries, it gets the recorded answers
                and costs. By default a new one.

        Returns:
            For each query an `hf.Answer`.

        Raises:
            BudgetExhausted: If the budget does not cover all new queries; then none is answered.
            RateLimited: If you asked too much in this minute.
            AccessDenied: If the key is not valid.
            InvalidInput: If the queries are not understood.
            LedgerUnavailable: If the service cannot reach its ledger, after all retries.
            ServiceUnavailable: If the service cannot be reached, after all retries.
        """
        from .serving.predictor import Answer

        if idempotency_key is not None and not (
            isinstance(idempotency_key, str) and _NAMES.fullmatch(idempotency_key)
        ):
            raise InvalidInput(
                f"idempotency_key={idempotency_key!r}: expected 1 to 200 printable ASCII "
                "characters, no blank at either end"
            )
        rows, single = self._rows(queries)
        name = secrets.token_hex(16) if idempotency_key is None else idempotency_key
        found = self._send("POST", self._prefix, {"queries": rows}, {"Idempotency-Key": name})
        answers: list[Answer] = [
            Answer(each["label"], each["index"], each["cost"], found["remaining"])
            for each in found["answers"]
        ]
        return answers[0] if single else answers

    def preview(self, queries: Any) -> Preview:
        """Return what `ask` would cost; nothing is answered or charged.

        Args:
            queries: As for `ask`.
        """
        from .serving.predictor import Preview

        rows, _ = self._rows(queries)
        found = self._send("POST", f"{self._prefix}/preview", {"queries": rows})
        return Preview(found["cost"], found["new"], found["remaining"], found["fits"])

    def budget(self) -> dict[str, Any]:
        """Return what was granted, what is spent, and what is left for you."""
        return self._send("GET", "/v1/budget")

    def model(self) -> dict[str, Any]:
        """Return public facts about the model, among them its classes and columns."""
        return self._send("GET", "/v1/model")

    def statement(self) -> dict[str, Any]:
        """Return the privacy statement."""
        return self._send("GET", "/v1/statement?format=json")

    def rotate_key(self) -> str:
        """Return a new key for yourself, and use it from now on; the old one ends after a day."""
        if callable(self._key):
            raise InvalidInput("the key comes from a function; rotate it where it is kept")
        # Not repeated: a lost response would leave a new key that nobody knows.
        found = self._attempt("POST", "/v1/keys/rotate", None, {})
        self._key = str(found["key"])
        return self._key

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Send a request, again and again if the service cannot be reached."""
        for attempt in range(self._retries + 1):
            try:
                return self._attempt(method, path, body, headers or {})
            except _WORTH_RETRYING:
                if attempt == self._retries:
                    raise
                pause = min(_LONGEST_PAUSE, 0.25 * 2**attempt)
                time.sleep(pause * (0.5 + secrets.randbelow(1000) / 1000))
        raise AssertionError("unreachable")

    def _attempt(
        self, method: str, path: str, body: Any, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        key = _checked_key(self._key() if callable(self._key) else self._key)
        about = {
            "Authorization": f"Bearer {key}",
            "Accept": "application/json",
            "Content-Type": "application/json",
            **headers,
        }
        content = _as_json(body)
        try:
            response = self._http.request(method, path, content=content, headers=about)
        except self._library.HTTPError as error:
            raise ServiceUnavailable(
                f"{self._http.base_url}: no response of the service ({type(error).__name__}); is "
                "it running there?"
            ) from None
        try:
            found = response.json()
        except (ValueError, RecursionError):
            raise ServiceUnavailable(
                f"{self._http.base_url}{path}: status {response.status_code}, and no JSON; is this "
                "the address of a holdfast service?"
            ) from None
        if response.is_success and isinstance(found, dict):
            return found
        raise _error_of(response.status_code, found)

    def _rows(self, queries: Any) -> tuple[list[Any], bool]:
        """Return queries as rows for JSON, and whether there is a single one."""
        names = getattr(queries, "column_names", None) or getattr(queries, "columns", None)
        if names is not None:
            known = [column["name"] for column in self.model()["columns"]]
            columns = {name: _cells(queries[name]) for name in known if name in set(names)}
            return _transposed(columns), False
        if isinstance(queries, Mapping):
            lists = [
                isinstance(cells, list | tuple) or getattr(cells, "ndim", 0) == 1
                for cells in queries.values()
            ]
            if lists and all(lists):
                return _transposed({name: _cells(queries[name]) for name in queries}), False
            return [{name: _cell(cell) for name, cell in queries.items()}], True
        if hasattr(queries, "to_dict"):  # a row of a data frame
            return self._rows(queries.to_dict())
        rows = queries.tolist() if hasattr(queries, "tolist") else queries
        if not isinstance(rows, Iterable) or isinstance(rows, str | bytes):
            raise InvalidInput(
                f"queries is a {type(queries).__name__}: expected one query, a mapping or a row of "
                "numbers, or several"
            )
        rows = [
            {name: _cell(cell) for name, cell in row.items()} if isinstance(row, Mapping) else row
            for row in rows
        ]
        single = bool(rows) and not isinstance(rows[0], Mapping | Sequence)
        return ([rows] if single else rows), single


def _checked_key(key: Any) -> str:
    """Return an access key or a token without blanks around it; raise AccessDenied for no key."""
    text = key.strip() if isinstance(key, str) else ""
    if not text:
        raise AccessDenied(
            "the key is empty: pass the key that the owner made for you (holdfast keys add)"
        )
    if not text.isascii() or not text.isprintable():
        raise AccessDenied("the key holds characters that no key has")
    return text


def _as_json(body: Any) -> bytes | None:
    if body is None:
        return None
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"queries cannot be sent as JSON ({error}); a missing cell is None"
        ) from None


def _cells(cells: Any) -> list[Any]:
    """Return the cells of a column; what is missing in it is None."""
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(cells, method):
            cells = getattr(cells, method)()
    return [_cell(cell) for cell in cells]


def _cell(cell: Any) -> Any:
    """Return a cell as JSON takes it; pandas has several ways to say that one is missing."""
    if hasattr(cell, "item") and getattr(cell, "ndim", None) == 0:
        cell = cell.item()
    missing = type(cell).__name__ in ("NAType", "NaTType")
    return None if missing or (isinstance(cell, float) and math.isnan(cell)) else cell


def _transposed(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    if len({len(cells) for cells in columns.values()}) > 1:
        raise InvalidInput("queries: the columns have different lengths")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _error_of(status: int, found: Any) -> HoldfastError:
    """Return the error that the service reports."""
    about = found if isinstance(found, dict) else {}
    kind = _ERRORS.get(str(about.get("type", "")).partition("#")[2])
    text = f"{about.get('detail', 'no detail')} (request {about.get('request_id', 'unknown')})"
    if kind is not None:
        return kind(text)
    return ServiceUnavailable(f"status {status}: {text}")
