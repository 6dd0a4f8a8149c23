"""The explorer of a run, answering on a port of this computer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from logicdiag.explore.serve import LOOPBACK, listen, server
from logicdiag.explore.session import Explorer

TOKEN = "a-token_of-tests"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return self.json["error"]


@dataclass(frozen=True)
class Served:
    explorer: Explorer
    port: int

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/?token={TOKEN}"

    def ask(self, path: str, body: Any = None, token: str | None = TOKEN, **headers: str) -> Answer:
        """GET, or POST where there is a body: bytes, or what becomes JSON. The path goes out as it is."""
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {} if token is None else {"X-Token": token}
        if body is not None and not isinstance(body, bytes):
            sent["Content-Type"] = "application/json"
        connection = HTTPConnection(LOOPBACK, self.port, timeout=60)
        try:
            connection.request("GET" if raw is None else "POST", path, raw, {**sent, **headers})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()


@contextmanager
def served(explorer: Explorer) -> Iterator[Served]:
    socket = listen(LOOPBACK, 0)
    made = server(explorer, TOKEN)
    thread = threading.Thread(target=made.run, args=([socket],))
    thread.start()
    try:
        yield Served(explorer, socket.getsockname()[1])
    finally:
        made.should_exit = True
        thread.join()
        socket.close()
