"""Pages that need no key: sign in, the API reference, and what errors mean."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from ..errors import AccessDenied
from .problems import ALL
from .sessions import OPEN_FORM_BYTES, read_form, render, runtime_of_page

router = APIRouter()


@router.get("/sign-in")
async def sign_in_page(request: Request) -> Response:
    return render(request, "sign_in.html.j2", error="")


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Begin a session for the holder of a key; the session holds its public id only."""
    form = await read_form(request, OPEN_FORM_BYTES)
    try:
        found = await runtime_of_page(request).authentication.principal(form.get("key").strip())
        if not found.key_id:
            raise AccessDenied("sign in with an access key; tokens are for programs")
    except AccessDenied as error:
        return render(request, "sign_in.html.j2", error=str(error), status_code=401)
    request.session.clear()  # a new token for forms, too
    request.session["key"], request.session["since"] = found.key_id, int(time.time())
    return RedirectResponse("/", 303)


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    await read_form(request, OPEN_FORM_BYTES)
    request.session.clear()
    return RedirectResponse("/sign-in", 303)


@router.get("/errors")
async def errors(request: Request) -> Response:
    return render(request, "errors.html.j2", problems=[each for each in ALL if each.advice])


@router.get("/reference")
async def reference(request: Request) -> Response:
    """Show the API, from its own description."""
    paths: list[dict[str, Any]] = []
    for path, methods in request.app.openapi()["paths"].items():
        for method, about in methods.items():
            paths.append({"path": path, "method": method.upper(), **about})
    return render(request, "reference.html.j2", paths=paths, url=str(request.base_url).rstrip("/"))
