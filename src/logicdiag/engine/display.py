"""What a person sees while training runs: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from ..files import Progress as Told

QUIET = 30.0
"""Seconds between two lines where there is no terminal."""


class Display:
    """Silent in all processes but the first."""

    def __init__(self, steps: int, start: int, speaks: bool, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.steps, self.speaks = steps, speaks
        self.bar = Progress(
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[told]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            console=self.console,
            disable=not (speaks and self.console.is_terminal),
            refresh_per_second=4,
            expand=True,
        )
        self.task = self.bar.add_task("train", total=steps, completed=start, told="")
        self.said = 0.0
        self.begin(start)

    def begin(self, done: int) -> None:
        """Count the rate from here on."""
        self.begun, self.first = time.monotonic(), done

    def __enter__(self) -> Display:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bar.stop()

    def step(self, done: int) -> None:
        self.bar.update(self.task, completed=done)

    def metrics(self, done: int, line: Mapping[str, float]) -> None:
        rate = (done - self.first) / max(time.monotonic() - self.begun, 1e-9)
        told = f"{rate:.1f}/s  " + " ".join(_short(name, line[name]) for name in SHOWN if name in line)
        self.bar.update(self.task, told=told)
        if not self.console.is_terminal and (time.monotonic() - self.said > QUIET or done == self.steps):
            self.said = time.monotonic()
            left = (self.steps - done) / max(rate, 1e-9)
            self.say(f"step {done}/{self.steps}  {told}  {left:.0f} s left")

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self.speaks:
            self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")


SHOWN = {
    "loss": "loss {:.2f}",
    "conflict": "conflict {:.0%}",
    "counted": "counted {:.0%}",
    "loss/labeled": "labelled {:.2f}",
    "loss/unlabeled": "unlabelled {:.2f}",
}
"""The first ones are seen on a narrow terminal too."""


def _short(name: str, value: float) -> str:
    return SHOWN[name].format(value)


@contextmanager
def showing_progress(speaks: bool = True) -> Iterator[Told]:
    """A bar for each kind of work, on a terminal alone."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = speaks and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield show
