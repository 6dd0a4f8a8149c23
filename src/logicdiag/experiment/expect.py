"""How long tasks should take, from those that are done and those that are running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from .grid import Cell, psi_of
from .store import last_step
from .task import Task

if TYPE_CHECKING:
    from .runner import Running

Kind = tuple[str, str, str, str]


@dataclass(frozen=True)
class Pace:
    """What a run takes: a new process its start (imports, kernels), each step, and the end (evaluation)."""

    start: float
    step: float
    end: float = 0.0

    def seconds(self, steps: int, new: bool = True) -> float:
        """`new`: in a new process; in one that has done others, the start takes no time to speak of."""
        return new * self.start + self.step * steps + self.end


class Expectation:
    """Paces by kind of run: data set, method, psi and head; an unknown kind takes as long as the slowest known one."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.known: dict[Kind, list[Pace]] = {}

    def learn(self, one: Running, now: float) -> None:
        """From a task that was done just now; earlier ones may be of another machine."""
        steps = one.task.steps - one.start
        if steps > 0:
            seconds = now - one.begun
            if (seen := _seen(one)) is None:
                pace = Pace(0.0, seconds / steps)
            else:
                pace = Pace(seen.start, seen.step, max(0.0, seconds - seen.seconds(steps)))
            self.known.setdefault(kind(one.task.cell), []).append(pace)

    def seconds(self, task: Task, running: Sequence[Running] = (), new: bool = True) -> float | None:
        """Until the end of a task that begins, or goes on, now, in a `new` process or in another; None: nothing is
        known yet.
        """
        return _seconds(task, self._paces(running), new)

    def left(self, running: Sequence[Running], waiting: Sequence[Task]) -> float | None:
        """Until the end of everything; None: nothing is known yet."""
        total, paces = 0.0, self._paces(running)
        for task in waiting:
            if (expected := _seconds(task, paces, new=False)) is None:
                return None
            total += expected
        for one in running:
            if (pace := paces.get(kind(one.task.cell))) is None:
                return None
            total += pace.step * (one.task.steps - one.step) + pace.end
        return total / max(1, min(self.jobs, len(running) + len(waiting)))

    def _paces(self, running: Sequence[Running]) -> dict[Kind, Pace]:
        """A running task tells how long its start took; its end is not known yet."""
        found = {}
        for name, known in self.known.items():
            # starts differ, those of processes that had done others are short: the longest is that of a new one
            start = max(pace.start for pace in known)
            found[name] = Pace(start, median(pace.step for pace in known), median(pace.end for pace in known))
        for one in running:
            if (seen := _seen(one)) is not None:
                found.setdefault(kind(one.task.cell), seen)
        return found


def _seconds(task: Task, paces: dict[Kind, Pace], new: bool) -> float | None:
    steps = task.steps - last_step(task.run)
    if (own := paces.get(kind(task.cell))) is not None:
        return own.seconds(steps, new)
    return max((pace.seconds(steps, new) for pace in paces.values()), default=None)


def _seen(one: Running) -> Pace | None:
    """How long the start and each step of a running task take; None: that is not known yet."""
    if (step := one.per_step()) is None or one.first is None:
        return None
    return Pace(max(0.0, one.first[1] - one.begun - step * (one.first[0] - one.start)), step)


def kind(cell: Cell) -> Kind:
    return cell.dataset, cell.config.method.name, psi_of(cell.config), cell.config.model.head
