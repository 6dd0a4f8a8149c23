"""The questions that the page asks, as addresses. All that is computed is in `session` and `maps`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import unquote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from ..errors import DataError, LogicDiagError
from .guard import App, Guard
from .images import MOST_BYTES, UnknownImage
from .maps import draw, photo, summary
from .session import Explorer, Setting, passing

KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
PAGE = {
    "index.html": "explore/page",
    "explore.css": "explore/page",
    "explore.js": "explore/page",
    "ask.js": "explore/page",
    "dom.js": "explore/page",
    "form.js": "explore/page",
    "maps.js": "explore/page",
    "pixel.js": "explore/page",
    "tree.js": "explore/page",
    "page.css": "report",
}
"""The parts of the page, and where they are in the package; nothing else is ever read."""
QUIET: dict[str, Any] = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""Nothing about what is asked goes anywhere, whatever the environment says of telemetry."""


@dataclass(frozen=True)
class Ask:
    """An image under some rules."""

    image: str
    setting: Setting


@dataclass(frozen=True)
class AskMap:
    image: str
    setting: Setting
    what: str
    of: str = ""


@dataclass(frozen=True)
class AskPixel:
    image: str
    setting: Setting
    x: int
    y: int
    most: int | None = None
    """Of a pixel that is only passed: so many diagnoses and broken rules at most. None: all that are ever listed."""


def application(explorer: Explorer, token: str, host: str = "127.0.0.1") -> App:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, telemetry=QUIET)  # type: ignore[arg-type]

    def start() -> Response:
        return _file("index.html")

    def file(name: str) -> Response:
        return _file(name) if name in PAGE else _problem("there is no such part of the page", 404)

    def facts() -> Response:
        return JSONResponse(explorer.facts())

    def image(key: str) -> Response:
        return _png(photo(explorer.shelf.photo(key).image()))

    def repair(ask: Ask) -> Response:
        return JSONResponse(summary(explorer.see(ask.image, ask.setting)))

    def picture(ask: AskMap) -> Response:
        return _png(draw(explorer.see(ask.image, ask.setting), ask.what, ask.of))

    def pixel(ask: AskPixel) -> Response:
        at = (ask.x, ask.y)
        if ask.most is None:
            return JSONResponse(explorer.pixel(ask.image, ask.setting, at).as_dict())
        return JSONResponse(passing(explorer.pixel(ask.image, ask.setting, at, ask.most), ask.most))

    async def drop(request: Request) -> Response:
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > MOST_BYTES:
                return _problem(f"the file has more than {MOST_BYTES >> 20} MB; give it on the command line", 413)
        name = unquote(request.headers.get("x-name", "image"))
        key = await run_in_threadpool(explorer.shelf.drop, name, bytes(data))
        return JSONResponse({"id": key, "name": explorer.shelf.photo(key).name})

    app.add_api_route("/", start)
    app.add_api_route("/page/{name}", file)
    app.add_api_route("/api/run", facts)
    app.add_api_route("/api/image/{key}", image)
    app.add_api_route("/api/image", drop, methods=["POST"])
    app.add_api_route("/api/repair", repair, methods=["POST"])
    app.add_api_route("/api/map", picture, methods=["POST"])
    app.add_api_route("/api/pixel", pixel, methods=["POST"])
    app.add_exception_handler(LogicDiagError, _mistake)
    app.add_exception_handler(RequestValidationError, _not_understood)
    app.add_exception_handler(404, lambda _request, _error: _problem("there is nothing at this address", 404))
    app.add_exception_handler(Exception, _own_fault)
    return Guard(app, token, host)


def _mistake(_request: Request, error: Exception) -> Response:
    return _problem(
        str(error), 404 if isinstance(error, UnknownImage) else 415 if isinstance(error, DataError) else 422
    )


def _not_understood(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return _problem(f"{first['loc'][-1]}: {first['msg']}", 422)


def _own_fault(_request: Request, error: Exception) -> Response:
    sys.stderr.write(f"logicdiag: {type(error).__name__}: {error}\n")
    return _problem("the server made a mistake; its terminal says which", 500)


def _problem(sentence: str, status: int) -> Response:
    return JSONResponse({"error": sentence}, status)


def _file(name: str) -> Response:
    text = resources.files("logicdiag") / PAGE[name] / name
    return Response(text.read_bytes(), media_type=f"{KINDS[name.rpartition('.')[2]]}; charset=utf-8")


def _png(data: bytes) -> Response:
    return Response(data, media_type="image/png")
