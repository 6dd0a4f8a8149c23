"""How long does the explorer take to say what it thinks of a pixel? The goal is less than a frame, 16 ms.

    python benchmarks/explore.py               # 513 x 513 pixels, the 94 classes of COCO
    python benchmarks/explore.py --size 65     # a smaller image

The network is not trained, so that nearly every pixel is in conflict and has many diagnoses; of these the page asks for
the likeliest twelve, until the pixel is pinned. *server* is the question asked in this process; *HTTP* goes through
loopback, JSON included; *browser* is from the pointer's event in Chromium until the explanation is laid out, and
*painted* until a frame with it is painted, without a GPU (both only where Chromium is found). *repair* is a new rule
over the whole image, with its numbers and one map.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from hovering import browser_times, find, measuring
from logicdiag import Hierarchy
from logicdiag.data.dataset import Dataset, Photo
from logicdiag.engine.config import Config
from logicdiag.engine.run import Run, create_run
from logicdiag.explore.images import Held
from logicdiag.explore.maps import draw, summary
from logicdiag.explore.serve import LOOPBACK, listen, server
from logicdiag.explore.session import Explorer
from logicdiag.models.segmenter import ModelConfig, build_model
from logicdiag.report.look import Viewer

FRAME = 16.0
TOKEN = "benchmark"
PASSING = 12
"""Diagnoses, as in pixel.js."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, default=513)
    parser.add_argument("--hierarchy", default="coco")
    parser.add_argument("--pixels", type=int, default=100)
    parser.add_argument("--families", nargs="+", default=["CDE", "CD", "CE", "DE", "C", "D", "E"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = untrained_run(Path(folder) / "run", Hierarchy.load(args.hierarchy))
        rng = np.random.default_rng(0)
        image = rng.integers(0, 256, (args.size, args.size, 3), np.uint8)
        explorer = Explorer(Viewer(run, device="cpu"), [Photo("noise", Held(image))])
        places = rng.integers(0, args.size, (args.pixels, 2)).tolist()
        print(f"{args.size} x {args.size} pixels, {len(run.hierarchy)} classes; milliseconds: median (95 %)\n")
        print("| families | in conflict | diagnoses | server | HTTP | browser | painted | repair |")
        print("|---|---|---|---|---|---|---|---|")
        medians = [measured(explorer, families, places) for families in args.families]
    print(f"\nslowest median {max(medians):.1f} ms: {'within' if max(medians) < FRAME else 'NOT WITHIN'} a frame")


def untrained_run(path: Path, h: Hierarchy) -> Run:
    config = Config(model=ModelConfig(encoder="small", head_bias=0.0))
    run = create_run(path, config, path.parent, Dataset(h.title, h, (), (), (), {}, lambda _: ()), {})
    torch.manual_seed(0)
    save_file(build_model(config.model, h).state_dict(), path / "last.safetensors")
    return run


def measured(explorer: Explorer, families: str, places: Sequence[Sequence[int]]) -> float:
    setting = replace(explorer.own, families=families)
    started = time.perf_counter()
    seen = explorer.see("g0", setting)
    numbers = summary(seen)
    draw(seen, "repair")
    repair = 1e3 * (time.perf_counter() - started)
    found = [len(explorer.pixel("g0", setting, (x, y)).explanation.diagnoses) for x, y in places]
    asked = times(lambda x, y: explorer.pixel("g0", setting, (x, y), PASSING).as_dict(), places)
    socket = listen(LOOPBACK, 0)
    answering = server(explorer, TOKEN)
    size = seen.look.chosen.shape[0]
    page = measuring(answering, families, places, size)
    thread = threading.Thread(target=answering.run, args=([socket],))
    thread.start()
    connection = HTTPConnection(LOOPBACK, socket.getsockname()[1])
    headers = {"X-Token": TOKEN, "Content-Type": "application/json"}

    def through_http(x: int, y: int) -> None:
        question = {"image": "g0", "setting": vars(setting), "x": x, "y": y, "most": PASSING}
        connection.request("POST", "/api/pixel", json.dumps(question), headers)
        answer = connection.getresponse()
        json.loads(answer.read())
        assert answer.status == 200

    tripped = times(through_http, places)
    connection.close()
    laid_out, painted = [], []
    if find() is not None:
        laid_out, painted = browser_times(page, f"http://{LOOPBACK}:{socket.getsockname()[1]}/measure?token={TOKEN}")
    answering.should_exit = True
    thread.join()
    socket.close()
    conflict = numbers["conflict"] / seen.look.chosen.numel()
    print(
        f"| {families} | {conflict:.0%} | {statistics.median(found):.0f} (most {max(found)}) | {shown(asked)} | "
        f"{shown(tripped)} | {shown(laid_out)} | {shown(painted)} | {repair:.0f} |",
        flush=True,
    )
    return statistics.median(laid_out or tripped)


def times(ask: Callable[[int, int], object], places: Sequence[Sequence[int]]) -> list[float]:
    found = []
    for x, y in places:
        started = time.perf_counter()
        ask(x, y)
        found.append(1e3 * (time.perf_counter() - started))
    return found


def shown(milliseconds: list[float]) -> str:
    if not milliseconds:
        return "no Chromium"
    return f"{statistics.median(milliseconds):.1f} ({statistics.quantiles(milliseconds, n=20)[-1]:.1f})"


if __name__ == "__main__":
    main()
