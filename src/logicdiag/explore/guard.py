"""Who may ask the server: pages that know the token, under the names that this computer goes by."""

from __future__ import annotations

import ipaddress
import json
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

TOKEN_HEADER = b"x-token"
START = "/"
"""What a person opens, with the token in the address; the page sends it as a header from then on."""
OPEN = "/page/"
"""The page's own script and colours, which hold nothing of the user's: the only paths that ask for no token."""
HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


class Guard:
    """Stands before an application."""

    def __init__(self, app: App, token: str, host: str) -> None:
        self.app, self.token = app, token.encode()
        self.names = {"localhost", host.lower(), socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets here
            return
        problem = self._problem(scope)
        if problem is not None:
            await _refuse(problem, scope["path"] == START, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        await self.app(scope, receive, sent)

    def _problem(self, scope: Scope) -> str | None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        if not self.is_own_name(headers.get(b"host", b"").decode("latin-1")):
            return "this server goes by another name; open the address that logicdiag explore printed"
        if scope["path"].startswith(OPEN):
            return None
        given = headers.get(TOKEN_HEADER, b"")
        if scope["path"] == START:
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0].encode()
        if not secrets.compare_digest(given, self.token):
            return "the token is missing or wrong; open the address that logicdiag explore printed, with its token"
        return None

    def is_own_name(self, host: str) -> bool:
        """Whether a Host header names this computer: a page of another site that has its name lead here does not.

        An address is always right, because such a page would be asked for by its name.
        """
        name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        if name.lower() in self.names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


async def _refuse(problem: str, to_a_person: bool, send: Send) -> None:
    body = f"{problem}\n".encode() if to_a_person else json.dumps({"error": problem}).encode()
    kind = b"text/plain; charset=utf-8" if to_a_person else b"application/json"
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *HEADERS]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
