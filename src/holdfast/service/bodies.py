"""Bodies: read the queries of a request, and stop at the first thing that is wrong.

A list of all errors, as validators make it, would be far larger than the body.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic_core import from_json

from ..errors import InvalidInput
from .settings import LONGEST_TEXT, MOST_COLUMNS

_SHAPE = 'expected {"queries": [{"column": cell, ...}, ...]}, as in /reference'


def read_queries(body: bytes, max_queries: int) -> list[Any]:
    """Return the queries in the body of a request: objects with cells, or lists of numbers.

    Args:
        body: The body.
        max_queries: The most queries that are accepted.

    Raises:
        InvalidInput: If it is not a body of queries. The message holds none of its values.
    """
    try:
        found = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidInput(f"the body is not JSON ({str(error)[:100]}); {_SHAPE}") from None
    if not isinstance(found, dict) or found.keys() != {"queries"}:
        raise InvalidInput(f"the body is not an object with `queries` alone; {_SHAPE}")
    queries = found["queries"]
    if not isinstance(queries, list) or not queries:
        raise InvalidInput(f"queries: holds no list of queries; {_SHAPE}")
    if len(queries) > max_queries:
        raise InvalidInput(
            f"{len(queries):,} queries in a request: expected at most {max_queries:,}; "
            "send several requests"
        )
    return [_query(number, query) for number, query in enumerate(queries)]


def _query(number: int, query: Any) -> Any:
    if isinstance(query, list):
        return query  # its numbers are checked against the shape of a record
    if not isinstance(query, dict) or len(query) > MOST_COLUMNS:
        raise InvalidInput(
            f"queries.{number}: expected an object with a cell per column, or a list of numbers"
        )
    return {name: _cell(number, name, cell) for name, cell in query.items()}


def _cell(number: int, name: str, cell: Any) -> Any:
    if cell is None or isinstance(cell, bool):
        return cell
    if isinstance(cell, str) and len(cell) <= LONGEST_TEXT:
        return cell
    if isinstance(cell, int) and not -(2**63) <= cell < 2**63:
        cell = float(cell) if -(10**300) < cell < 10**300 else math.inf
    if isinstance(cell, int) or (isinstance(cell, float) and math.isfinite(cell)):
        return cell
    raise InvalidInput(
        f"queries.{number}.{name[:100]}: expected a finite number, a text of at most "
        f"{LONGEST_TEXT} characters, true, false, or null for a missing value"
    )
