"""`explain`, `report` and `figure`: their arguments, and what they do with them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..commands import inference_of
from ..engine.display import showing_progress
from ..errors import ConfigError, choose

AddInference = Callable[[argparse.ArgumentParser, str, str], None]

MOST = 60
"""Validation images that a report measures by default: a minute's work on two cores."""


def add_commands(every: Any, add_inference: AddInference) -> None:
    say = every.add_parser(
        "explain",
        help="one pixel in words: what the network said, which rule broke, the diagnoses, the choice and why",
        description="Predicts the image as `predict` does and diagnoses it with the rules and the strategy of the run. "
        "Truth degrees are over the image.",
    )
    say.add_argument("run_folder", metavar="RUN")
    say.add_argument("image", metavar="IMAGE", help="a file, or the name of an image in the run's data")
    say.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings to change, such as psi.strategy=greedy")
    say.add_argument("--at", required=True, metavar="X,Y", help="the pixel: column and row, 0,0 at the upper left")
    say.add_argument("--seed", type=int, default=0, metavar="N", help="of drawn diagnoses; default: 0")
    say.add_argument("--json", action="store_true", help="for programs")
    add_inference(say, "last", "last or best; default: last")
    say.set_defaults(run=explain)

    page = every.add_parser(
        "report",
        help="one HTML file about one run or several, side by side",
        description="Measures the runs on their validation images (kept in RUN/report.json) and writes a page that "
        "needs no network: curves, classes, confusion, conflicts, pseudo labels, worst images, reliability, settings. "
        "The masks of unlabelled images are not opened. KEY=VALUE changes a setting of all runs, such as data.root=...",
    )
    page.add_argument("runs", nargs="+", metavar="RUN", help="run folders, and KEY=VALUE")
    page.add_argument("--out", default="report.html", metavar="FILE", help="default: report.html")
    page.add_argument(
        "--images",
        type=_count,
        default=MOST,
        metavar="N",
        help=f"measure on N of the validation images, evenly taken, or on all; default: {MOST}",
    )
    page.add_argument("--shown", type=int, default=3, metavar="N", help="images in pictures; default: 3")
    page.add_argument("--again", action="store_true", help="measure anew what was measured")
    page.add_argument("--device", metavar="D", help="cpu, cuda, ...; default: a GPU if there is one")
    page.set_defaults(run=report, run_folder=None, changes=[])

    draw = every.add_parser(
        "figure",
        help="figures for papers: an image and its repair, or the hierarchy with IoU (PNG, PDF)",
        description='Needs matplotlib: pip install "logicdiag[plots]".',
    )
    draw.add_argument("run_folder", metavar="RUN")
    draw.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings to change, such as data.root=...")
    what = draw.add_mutually_exclusive_group(required=True)
    what.add_argument("--image", metavar="NAME", help="a file, or the name of an image in the run's data")
    what.add_argument("--hierarchy", action="store_true", help="the hierarchy, with the IoU of every class")
    draw.add_argument("--out", required=True, metavar="FILE", help="a name that ends with .png or .pdf")
    add_inference(draw, "last", "last or best; default: last")
    draw.set_defaults(run=figure)


def explain(args: argparse.Namespace) -> int:
    from ..engine.run import open_run
    from .look import Viewer, find_image
    from .pixel import explain_pixel, flat, parse_at

    at = parse_at(args.at)
    choose("checkpoint", args.checkpoint, ("last", "best"))
    run = open_run(args.run_folder, tuple(args.changes))
    if run.config.model.head == "flat":
        raise flat(run)
    image = find_image(run, args.image).image()
    viewer = Viewer(run, args.checkpoint, args.device, args.precision, inference_of(args), args.seed)
    found = explain_pixel(viewer, viewer.look(image), at, args.image)
    sys.stdout.write(json.dumps(found.as_dict(), indent=2, ensure_ascii=False) + "\n" if args.json else str(found))
    return 0


def _count(text: str) -> int | None:
    return None if text == "all" else int(text)


def report(args: argparse.Namespace) -> int:
    from .page import write_report

    words = [*args.runs, *args.changes]
    runs = [word for word in words if "=" not in word or os.path.exists(word)]
    if not runs:
        raise ConfigError("a run is missing: logicdiag report RUN")
    changes = tuple(word for word in words if word not in runs)
    with showing_progress() as show:
        path = write_report(runs, args.out, args.images, args.shown, args.device, args.again, changes, show)
    sys.stdout.write(f"written: {path} ({path.stat().st_size / 1e6:.1f} MB)\n")
    return 0


def figure(args: argparse.Namespace) -> int:
    from ..engine.run import open_run
    from .figures import draw_hierarchy, draw_image

    choose("checkpoint", args.checkpoint, ("last", "best"))
    run = open_run(args.run_folder, tuple(args.changes))
    if args.hierarchy:
        with showing_progress() as show:
            draw_hierarchy(run, Path(args.out), args.checkpoint, args.device, show)
    else:
        draw_image(run, args.image, Path(args.out), args.checkpoint, args.device, args.precision, inference_of(args))
    sys.stdout.write(f"written: {args.out}\n")
    return 0
