"""One run as a report sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..engine.run import Run, read_metrics
from .measure import Measured


@dataclass(frozen=True)
class Told:
    name: str
    """Short, and different from that of every other run of the report."""
    look: int
    """Which colour and dash its lines have."""
    run: Run
    measured: Sequence[Measured]
    """Empty where the run has no validation images; the last network is the last."""

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return read_metrics(self.run.path)

    @property
    def last(self) -> Measured | None:
        return self.measured[-1] if self.measured else None

    @property
    def best(self) -> Measured | None:
        return next((one for one in self.measured if one.moment.which == "best"), None)

    @property
    def over_time(self) -> list[Measured]:
        """Snapshots and the last network; the best one where there are no snapshots, if it is another."""
        kept = [one for one in self.measured if one.moment.which != "best"]
        if len(kept) == 1 and self.best is not None and self.best.moment.step != kept[0].moment.step:
            kept.append(self.best)
        return sorted(kept, key=lambda one: one.moment.step)

    def curve(self, key: str, scale: float = 1.0) -> list[tuple[float, float]]:
        return [(line["step"], scale * line[key]) for line in self.metrics if line.get(key) is not None]


def short_names(runs: Sequence[Run]) -> list[str]:
    """The last part of each path, and more of it where that is the same."""
    parts = [run.path.resolve().parts for run in runs]
    names = []
    for mine in parts:
        length = next(
            (n for n in range(1, len(mine)) if sum(other[-n:] == mine[-n:] for other in parts) == 1), len(mine)
        )
        names.append("/".join(mine[-length:]))
    return names
