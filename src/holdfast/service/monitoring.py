"""Monitoring: metrics for Prometheus and structured logs, without features, labels or distances."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, multiprocess
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ..ledger import Ledger

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_LOGGED = ("request_id", "method", "route", "status", "milliseconds", "analyst", "queries")
_STEPS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts of requests, over all workers, and the state of the budget."""

    def __init__(self, ledger: Ledger, dataset: str) -> None:
        registry = CollectorRegistry()
        self._requests = Counter(
            "holdfast_requests",
            "Requests by route and status.",
            ["route", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "holdfast_response_seconds",
            "Time until the response ended, after padding.",
            buckets=_STEPS,
            registry=registry,
        )
        self._answers = Counter("holdfast_answers", "Answers given.", registry=registry)
        self._registry = registry
        if _FOLDER in os.environ:
            self._registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(self._registry)  # type: ignore[no-untyped-call]
        self._registry.register(_BudgetCollector(ledger, dataset))

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.observe(seconds)

    def count_answers(self, answers: int) -> None:
        self._answers.inc(answers)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's format; for the owner alone."""
        return generate_latest(self._registry)


class _BudgetCollector(Collector):
    def __init__(self, ledger: Ledger, dataset: str) -> None:
        self._ledger, self._dataset = ledger, dataset

    def describe(self) -> list[Any]:
        return []  # so that registering it does not read the ledger

    def collect(self) -> Iterator[GaugeMetricFamily]:
        status = self._ledger.status(self._dataset)
        yield GaugeMetricFamily(
            "holdfast_budget_spent_ratio",
            "The part of the budget that is spent.",
            status.share_spent,
        )
        yield GaugeMetricFamily(
            "holdfast_answers_left",
            "New answers that the budget still allows.",
            status.answers_left,
        )


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        about = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        known = {name: getattr(record, name) for name in _LOGGED if hasattr(record, name)}
        return json.dumps(about | known)


def log_as_json() -> None:
    """Send the logs of the service and of the web server to standard error, as JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    for name in ("holdfast.service", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    for name in ("uvicorn.access", "python_multipart", "python_multipart.multipart"):
        logging.getLogger(name).disabled = True
