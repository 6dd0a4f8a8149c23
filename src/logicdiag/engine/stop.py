"""Ctrl-C and SIGTERM: asked to stop, training ends its step, saves, and says how to go on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class Interrupted(Exception):
    """Training was stopped by the user; everything is saved."""

    def __init__(self, run: Path, step: int, steps: int) -> None:
        super().__init__(f"stopped at step {step} of {steps}; go on with: logicdiag train --resume {run}")


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C (or SIGTERM) asks for a stop after the step; a second one stops at once."""
    asked: list[int] = []

    def ask(number: int, _: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            before[number] = signal.signal(number, ask)
        except ValueError:  # not in the main thread
            break
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
