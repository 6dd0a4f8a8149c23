"""What a person sees while cells run: a table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .task import Task

if TYPE_CHECKING:
    from .runner import Outcome, Running

QUIET = 30.0
"""Seconds between two lines where there is no terminal."""


class Show:
    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self.said = time.monotonic()
        self.live = Live(console=self.console, refresh_per_second=4, transient=True) if self._terminal else None

    @property
    def _terminal(self) -> bool:
        return self.console.is_terminal

    def __enter__(self) -> Show:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.live is not None:
            self.live.stop()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, outcome: Outcome, running: Sequence[Running], waiting: Sequence[Task], left: float | None) -> None:
        head = summary(len(outcome.done), len(running), len(outcome.failed), len(waiting), left)
        now = time.monotonic()
        if self.live is not None:
            table = Table(box=None, pad_edge=False, show_header=False)
            for one in running:
                table.add_row(*(Text(text) for text in line(one)))
            self.live.update(Group(Text(head), table))
        elif now - self.said > QUIET:
            self.said = now
            self.say("; ".join([head, *("  ".join(line(one)[:2]) for one in running)]))


def line(one: Running) -> tuple[str, str, str, str]:
    """A running task: name, step, rate, time left."""
    name, steps, step = one.task.name, one.task.steps, one.per_step()
    if one.step >= steps:
        return name, f"{one.step}/{steps}", "", "evaluation"
    if not step:
        return name, f"{one.step}/{steps}", "", ""
    return name, f"{one.step}/{steps}", f"{1 / step:.1f}/s", f"{duration((steps - one.step) * step)} left"


def summary(done: int, running: int, failed: int, waiting: int, left: float | None) -> str:
    """
    >>> summary(3, 2, 0, 7, 5400.0)
    '3 of 12 done, 2 running, about 1 h 30 min left'
    """
    parts = [f"{done} of {done + running + failed + waiting} done", f"{running} running"]
    parts += [f"{failed} failed"] * bool(failed)
    parts += [] if left is None else [f"about {duration(left)} left"]
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """
    >>> duration(42), duration(150), duration(7260)
    ('42 s', '2 min', '2 h 1 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
