"""What is added up between two lines of metrics, on the device, so that no step waits for a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float64
from torch import Tensor

from .distributed import World


class Record:
    """Losses are means over steps; shares are sums over sums.

    Once there, the table of sums stays where it is: a captured step adds to it there.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.sums: Float64[Tensor, "k 2"] | None = None
        self.steps = 0

    def add(self, names: Sequence[str], table: Float64[Tensor, "k 2"]) -> None:
        """A micro-batch: losses (sum, 0), whose parts of one step add up, and shares (sum, count).

        In a later stage of a method there may be more names, behind those there were.
        """
        if self.sums is None or len(names) > len(self.names):
            before, self.names, self.sums = self.sums, list(names), table.clone()
            if before is not None:
                self.sums[: len(before)] += before
        else:
            self.sums += table

    def line(self, here: World) -> dict[str, float]:
        """The numbers of all processes since the last line; then start anew."""
        if self.sums is None or not self.steps:
            return {}
        together = here.add(self.sums.clone()).tolist()
        line = {}
        for name, (part, whole) in zip(self.names, together, strict=True):
            line[name] = part / self.steps if name.startswith("loss") else part / max(whole, 1.0)
        self.sums.zero_()
        self.steps = 0
        return line

    def gather(self, here: World) -> None:
        """Hand everything to the first process, which remembers for all."""
        if here.size > 1 and self.sums is not None:
            here.add(self.sums)
            if not here.is_first:
                self.sums.zero_()

    def state_dict(self) -> dict[str, Any]:
        return {"names": self.names, "sums": self.sums, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any], here: World) -> None:
        sums, self.names, self.steps = state["sums"], list(state["names"]), int(state["steps"])
        self.sums = None if sums is None else sums.to(here.device) * (1.0 if here.is_first else 0.0)
