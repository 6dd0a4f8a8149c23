"""How long cells should take, from those that are done and those that are running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from .config import Experiment
from .grid import Cell, psi_of
from .store import Store, last_step

if TYPE_CHECKING:
    from .runner import Running

Kind = tuple[str, str, str]


@dataclass(frozen=True)
class Pace:
    """What a run takes: something at both ends (imports, compiling, evaluation), and each step."""

    ends: float
    step: float

    def seconds(self, steps: int) -> float:
        return self.ends + self.step * steps


class Expectation:
    """Paces by kind of run: method, psi and head; an unknown kind takes as long as the slowest that is known."""

    def __init__(self, store: Store, experiment: Experiment) -> None:
        self.store, self.jobs = store, experiment.jobs
        self.known: dict[Kind, list[Pace]] = {}

    def learn(self, one: Running, now: float) -> None:
        """From a cell that was done just now; earlier ones may be of another machine."""
        steps = one.cell.config.train.steps - one.start
        if steps > 0:
            seconds = now - one.begun
            step = one.per_step()
            pace = Pace(0.0, seconds / steps) if step is None else Pace(max(0.0, seconds - step * steps), step)
            self.known.setdefault(kind(one.cell), []).append(pace)

    def seconds(self, cell: Cell, running: Sequence[Running] = ()) -> float | None:
        """Until the end of a cell that begins, or goes on, now; None: nothing is known yet."""
        paces = self._paces(running)
        steps = cell.config.train.steps - last_step(self.store.run(cell))
        if (own := paces.get(kind(cell))) is not None:
            return own.seconds(steps)
        return max((pace.seconds(steps) for pace in paces.values()), default=None)

    def left(self, running: Sequence[Running], waiting: Sequence[Cell]) -> float | None:
        """Until the end of everything; None: nothing is known yet."""
        total = 0.0
        for cell in waiting:
            if (expected := self.seconds(cell, running)) is None:
                return None
            total += expected
        paces = self._paces(running)
        for one in running:
            if (pace := paces.get(kind(one.cell))) is None:
                return None
            total += pace.step * (one.cell.config.train.steps - one.step)
        return total / max(1, min(self.jobs, len(running) + len(waiting)))

    def _paces(self, running: Sequence[Running]) -> dict[Kind, Pace]:
        """A running cell tells how long its start took; its end is not known yet."""
        found = {}
        for name, known in self.known.items():
            found[name] = Pace(median(pace.ends for pace in known), median(pace.step for pace in known))
        for one in running:
            if (step := one.per_step()) is not None and one.first is not None:
                begin = one.first[1] - one.begun - step * (one.first[0] - one.start)
                found.setdefault(kind(one.cell), Pace(max(0.0, begin), step))
        return found


def kind(cell: Cell) -> Kind:
    return cell.config.method.name, psi_of(cell.config), cell.config.model.head
