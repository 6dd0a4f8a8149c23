"""`explore`: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from ..commands import inference_of
from ..errors import ConfigError, choose

AddInference = Callable[[argparse.ArgumentParser, str, str], None]
NEEDED = ("fastapi", "uvicorn")


def add_command(every: Any, add_inference: AddInference) -> None:
    look = every.add_parser(
        "explore",
        help="a page on this computer: images, conflicts, every pixel explained, rules to change",
        description="Serves a page to this computer alone and prints its address, which holds a token. Choose an image "
        "or drop one in, point at a pixel, edit the rules and see the repair change. Nothing is written, and nothing "
        'but the images named here can be read. Needs: pip install "logicdiag[explore]".',
    )
    look.add_argument("run_folder", metavar="RUN")
    look.add_argument(
        "changes",
        nargs="*",
        metavar="IMAGES",
        help="files, folders, names in the run's data; default: what the run is validated on. Also KEY=VALUE, such as "
        "psi.strategy=greedy",
    )
    look.add_argument("--port", type=int, metavar="N", help="0: a free one; default: 8765, or a free one")
    look.add_argument("--host", default="127.0.0.1", metavar="H", help="default: 127.0.0.1, this computer alone")
    look.add_argument("--open", action="store_true", help="open the page in the browser")
    look.add_argument("--seed", type=int, default=0, metavar="N", help="of drawn diagnoses; default: 0")
    add_inference(look, "last", "last or best; default: last")
    look.set_defaults(run=explore)


def explore(args: argparse.Namespace) -> int:
    from ..engine.run import open_run
    from ..report.look import Viewer
    from ..report.pixel import flat

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f'explore needs {" and ".join(missing)}; install what is missing with: pip install "logicdiag[explore]"'
        )
    from .images import given_images
    from .serve import serve
    from .session import Explorer

    choose("checkpoint", args.checkpoint, ("last", "best"))
    images = [word for word in args.changes if "=" not in word or os.path.exists(word)]
    changes = tuple(word for word in args.changes if word not in images)
    run = open_run(args.run_folder, changes)
    if run.config.model.head == "flat":
        raise flat(run)
    photos = given_images(run, images)
    viewer = Viewer(run, args.checkpoint, args.device, args.precision, inference_of(args), args.seed)

    def say(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    serve(Explorer(viewer, photos), args.host, args.port, args.open, say)
    return 0
