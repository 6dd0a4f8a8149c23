"""One self-contained HTML file about one run or several: no network, no script, opens from disk, prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from importlib import resources
from pathlib import Path

import torch

from .. import __version__
from ..engine.run import open_run
from ..errors import OptionError, RunError
from ..files import Progress, written_whole
from . import gallery, sections
from .html import Content, Headings, Markup, element, joined
from .measure import measure
from .told import Told, short_names

SHOWN, WORST = 3, 6
"""Images whose pseudo labels are shown, and images that came out worst."""


def write_report(
    runs: Sequence[str | Path],
    out: str | Path,
    images: int | None = None,
    shown: int = SHOWN,
    device: torch.device | str | None = None,
    again: bool = False,
    overrides: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> Path:
    """Measure the runs on their validation images (what was measured before is kept) and write the page.

    `images`: measure on so many of them, evenly taken. The masks of unlabelled images are never opened.
    """
    for name, value in (("--images", images), ("--shown", shown)):
        if value is not None and value < 1:
            raise OptionError(f"{name} is {value}, expected a whole number of at least 1")
    path = Path(out)
    if path.is_dir():
        raise OptionError(f"{path}: is a folder, expected a file to write, such as {path / 'report.html'}")
    opened = [open_run(run, overrides) for run in runs]
    told = [
        Told(name, look, run, measure(run, images, device, again, progress))
        for look, (name, run) in enumerate(zip(short_names(opened), opened, strict=True))
    ]
    text = page(told, shown, device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole([path]) as [part]:
            part.write_text(text, "utf-8")
    except OSError as error:
        raise RunError(f"{path}: the report cannot be written: {error.strerror}") from None
    return path


def page(runs: Sequence[Told], shown: int = SHOWN, device: torch.device | str | None = None) -> str:
    h = Headings()
    several = f"{len(runs)} runs side by side" if len(runs) > 1 else runs[0].name
    body = [
        h.section("Summary", sections.summary(runs)),
        h.section("Curves", sections.curves(runs)),
        h.section("Classes", sections.classes(runs)),
        h.section("Confusion", *_each(runs, sections.confusion)),
        h.section("Conflicts", *_each(runs, sections.conflicts)),
        h.section(
            "Pseudo labels",
            element(
                "p",
                "Validation images, whose masks may be opened: what the outputs above 0.5 say (before), what the "
                "diagnosis makes of it (after), and what a confidence threshold would keep.",
            ),
            *_each(runs, lambda told: joined([sections.measured_pseudo(told), _gallery(told, shown, device)])),
        ),
        h.section("Worst images", *_each(runs, lambda told: gallery.worst_images(told, WORST, device))),
        h.section(
            "Reliability",
            element("p", "Points on the dashed diagonal: what is said with a probability is right that often."),
            *_each(runs, sections.reliability),
        ),
        h.section("Settings and versions", sections.settings(runs)),
    ]
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    written = element("p", f"Written {when} by logicdiag {__version__}.", class_="note")
    head = element("header", element("h1", f"Report: {several}"), written, h.nav())
    return _document(f"logicdiag: {several}", joined([head, element("main", *body, id="main")]))


def _gallery(told: Told, shown: int, device: torch.device | str | None) -> Markup:
    if not told.measured:
        return element("p", "The run has no validation images (data.val).")
    return gallery.pseudo_labels(told, shown, device)


def _each(runs: Sequence[Told], make: Callable[[Told], Content]) -> list[Markup]:
    """A part for each run, under its name."""
    return [joined([element("h3", told.name), make(told)]) for told in runs]


def _document(title: str, body: Markup) -> str:
    style = (resources.files("logicdiag.report") / "page.css").read_text("utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{element('title', title)}\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#main">Skip to the contents</a>\n{body}\n</body>\n</html>\n'
    )
