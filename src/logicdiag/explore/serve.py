"""Opens a port on this computer and answers until Ctrl-C."""

from __future__ import annotations

import errno
import ipaddress
import secrets
import socket
import webbrowser
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from ..errors import OptionError
from .server import application
from .session import Explorer

LOOPBACK = "127.0.0.1"
PORT = 8765
"""Where the page is, unless something else is there already."""
WAIT = 2
"""Seconds that answers on their way get at the end."""


def serve(explorer: Explorer, host: str, port: int | None, browser: bool, say: Callable[[str], object]) -> None:
    """`port` None: the usual one, or a free one where that is taken; 0: a free one."""
    token = secrets.token_urlsafe(24)
    listening = listen(host, port)
    address = f"http://{_shown(host)}:{listening.getsockname()[1]}/?token={token}"
    if not is_loopback(host):
        say(f"warning: {host} can be reached from other computers; whoever has the address sees the images\n")
    say(f"{address}\nCtrl-C ends it.\n")
    if browser:
        webbrowser.open(address)
    with listening, suppress(KeyboardInterrupt):
        server(explorer, token, host).run(sockets=[listening])


def server(explorer: Explorer, token: str, host: str = LOOPBACK) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            application(explorer, token, host),
            log_level="critical",  # addresses hold the token
            access_log=False,
            lifespan="off",
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=WAIT,
        )
    )


def listen(host: str, port: int | None) -> socket.socket:
    """A socket that answers from now on, so that a browser may be sent there."""
    wanted = [PORT, 0] if port is None else [port]
    if not 0 <= wanted[0] <= 65535:
        raise OptionError(f"--port is {port}, expected a number from 0 to 65535")
    for number in wanted:
        try:
            return _bound(host, number)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and number != wanted[-1]:
                continue
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise OptionError(f"--host is {host!r}, which is no address of this computer") from None
            taken = f"--port {number}" if port else f"port {number}"
            free = "; --port 0 takes a free one" if error.errno == errno.EADDRINUSE else ""
            raise OptionError(f"{taken} cannot be had on {host}: {error.strerror}{free}") from None
    raise AssertionError


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what was closed a moment ago is free
        made.bind(address)
        made.listen(64)
    except OSError:
        made.close()
        raise
    return made


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _shown(host: str) -> str:
    everywhere = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}
    return everywhere.get(host, f"[{host}]" if ":" in host else host)
