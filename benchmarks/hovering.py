"""How long does Chromium take from the pointer to the explanation? The page measures itself, without a debugger."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import resources
from pathlib import Path
from typing import Any

import uvicorn

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.browser.chromium import QUIET, find

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

UNLIMITED = ("--disable-frame-rate-limit", "--disable-gpu-vsync")
"""A frame begins when it is wanted; else waiting for it would be measured, too."""
WAIT = 300
"""Seconds until it is given up."""
SCRIPT = """
const until = (holds) => new Promise((done) => {
  const asking = setInterval(() => { if (holds()) { clearInterval(asking); done(); } }, 100);
});
const pause = (time) => new Promise((done) => setTimeout(done, time));
const painted = () => new Promise((done) => requestAnimationFrame(() => {
  const channel = new MessageChannel();
  channel.port1.onmessage = done; // comes after the frame
  channel.port2.postMessage(0);
}));
const stage = document.getElementById("stage"), drawn = document.getElementById("explanation");

async function hover(x, y, size) {
  const box = stage.getBoundingClientRect();
  const [clientX, clientY] = [box.left + ((x + 0.5) / size) * box.width, box.top + ((y + 0.5) / size) * box.height];
  const started = performance.now();
  const answered = new Promise((done) => {
    const watching = new MutationObserver(() => {
      if (drawn.dataset.at !== `${x},${y}`) return;
      watching.disconnect();
      drawn.getBoundingClientRect(); // lays it out
      done(performance.now() - started);
    });
    watching.observe(drawn, { attributes: true });
  });
  stage.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY, bubbles: true }));
  const laidOut = await answered;
  await painted();
  return [laidOut, performance.now() - started];
}

await until(() => !document.body.hasAttribute("aria-busy") && document.getElementById("small-changed")?.src);
for (const box of document.querySelectorAll("#families input")) {
  if (box.checked !== FAMILIES.includes(box.value)) box.click();
}
await pause(100);
await until(() => !document.body.hasAttribute("aria-busy"));
const found = [];
for (const [x, y] of PLACES) {
  found.push(await hover(x, y, SIZE));
  await pause(20);
}
await fetch("measured", { method: "POST", body: JSON.stringify(found) });
"""


class Measuring:
    """Stands before the explorer and serves its page once more, with the script."""

    def __init__(self, app: Any, script: str) -> None:
        self.app, self.script = app, script
        self.found: queue.Queue[list[list[float]]] = queue.Queue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path")
        if path == "/measure":
            page = (resources.files("logicdiag") / "explore/page/index.html").read_text("utf-8")
            script = '<script type="module" src="measure.js"></script></head>'
            await _answer(send, "text/html", page.replace("</head>", script))
        elif path == "/measure.js":
            await _answer(send, "text/javascript", self.script)
        elif path == "/measured":
            body, more = b"", True
            while more:
                message = await receive()
                body, more = body + message["body"], message.get("more_body", False)
            self.found.put(json.loads(body))
            await _answer(send, "text/plain", "")
        else:
            await self.app(scope, receive, send)


async def _answer(send: Send, kind: str, text: str) -> None:
    headers = [(b"content-type", f"{kind}; charset=utf-8".encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


def measuring(answering: uvicorn.Server, families: str, places: Any, size: int) -> Measuring:
    """Before the server runs."""
    given = f"const FAMILIES = {json.dumps(families)}, PLACES = {json.dumps(places)}, SIZE = {size};\n"
    made = Measuring(answering.config.app, given + SCRIPT)
    answering.config.app = made
    return made


def browser_times(made: Measuring, address: str) -> tuple[list[float], list[float]]:
    """Milliseconds until the explanation is laid out, and until a frame with it is painted."""
    chromium = find()
    assert chromium is not None
    as_root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--window-size=1440,900", f"--user-data-dir={profile}", *QUIET, *UNLIMITED, *as_root]
        process = subprocess.Popen([chromium, *options, address], stderr=subprocess.DEVNULL)
        try:
            found = made.found.get(timeout=WAIT)
        finally:
            process.terminate()
            process.wait()
    laid_out, painted = zip(*found, strict=True)
    return list(laid_out), list(painted)
