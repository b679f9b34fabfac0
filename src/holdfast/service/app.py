"""The application: the API and the page, around one runtime per worker process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from starlette.middleware.sessions import SessionMiddleware
from starlette.staticfiles import StaticFiles

from ..version import __version__
from . import analyst_pages, api, owner_pages
from .middleware import ServiceMiddleware, log_as_json
from .page_parts import SESSION_SECONDS, error_page
from .problems import add_handlers
from .runtime import Runtime
from .settings import ServiceSettings

_ABOUT = (
    "Private answers of a certified classifier. Each new answer is charged to a budget; errors are "
    "problems as in RFC 9457."
)


def create_app(settings: ServiceSettings) -> FastAPI:
    """Return the application for one worker.

    Args:
        settings: The model, the ledger and the limits.

    Raises:
        HoldfastError: If the model cannot be served from this ledger.
    """
    runtime = Runtime(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        runtime.start()
        yield
        runtime.stop()

    app = FastAPI(
        title="holdfast",
        version=__version__,
        description=_ABOUT,
        docs_url=None,  # its scripts would come from elsewhere; /reference is served instead
        redoc_url=None,
        redirect_slashes=False,  # such a redirect would name whatever host the client names
        lifespan=lifespan,
    )
    app.state.runtime = runtime
    add_handlers(app, error_page)
    for part in (api.router, api.probes):
        app.include_router(part)
    for part in (analyst_pages.router, owner_pages.router):
        app.include_router(part, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
    app.add_middleware(
        SessionMiddleware,
        secret_key=runtime.ledger.hasher()(b"page sessions").hex(),
        session_cookie="holdfast",
        max_age=SESSION_SECONDS,
        same_site="strict",
        https_only=settings.https,
    )
    app.add_middleware(ServiceMiddleware, settings=settings, metrics=runtime.metrics)
    return app


def worker_app() -> FastAPI:
    """Return the application in a worker process that `holdfast serve` has started."""
    log_as_json()
    return create_app(ServiceSettings.imported())
