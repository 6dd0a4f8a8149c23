"""How long cells should take, from those that are done and those that are running."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from .config import Experiment
from .grid import Cell, psi_of
from .store import Store, last_step

if TYPE_CHECKING:
    from .runner import Running

Kind = tuple[str, str, str]


class Expectation:
    """Seconds per step by kind of run: method, psi and head; of an unknown kind, the slowest that is known."""

    def __init__(self, store: Store, experiment: Experiment) -> None:
        self.store, self.split, self.jobs = store, experiment.evaluate, experiment.jobs
        self.known: dict[Kind, list[float]] = {}

    def learn(self, one: Running, now: float) -> None:
        """From a cell that was done just now; earlier ones may be of another machine."""
        steps = one.cell.config.train.steps - one.start
        if steps > 0:
            self.known.setdefault(kind(one.cell), []).append((now - one.begun) / steps)

    def seconds(self, cell: Cell, running: Sequence[Running], now: float) -> float | None:
        """Until the end of a cell that begins, or goes on, now; None: nothing is known yet."""
        rate = self._per_step(kind(cell), running, now)
        steps = cell.config.train.steps
        return None if rate is None else rate * max(steps - last_step(self.store.run(cell)), steps // 20)

    def left(self, running: Sequence[Running], waiting: Sequence[Cell], now: float) -> float | None:
        """Until the end of everything; None: nothing is known yet."""
        total = 0.0
        for cell in waiting:
            if (expected := self.seconds(cell, running, now)) is None:
                return None
            total += expected
        for one in running:
            if (rate := self._per_step(kind(one.cell), running, now)) is None:
                return None
            total += rate * (one.cell.config.train.steps - one.step)
        return total / max(1, min(self.jobs, len(running) + len(waiting)))

    def _per_step(self, wanted: Kind, running: Sequence[Running], now: float) -> float | None:
        rates = {name: median(values) for name, values in self.known.items()}
        for one in running:
            if one.step > one.start:
                rates.setdefault(kind(one.cell), 1 / one.rate(now))
        if wanted in rates:
            return rates[wanted]
        return max(rates.values(), default=None)


def kind(cell: Cell) -> Kind:
    return cell.config.method.name, psi_of(cell.config), cell.config.model.head
