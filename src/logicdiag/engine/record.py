"""What is added up between two lines of metrics, on the device, so that no step waits for a number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .distributed import World


class Record:
    """Losses are means over steps; shares are sums over sums."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.steps = 0

    def add(self, name: str, value: Tensor) -> None:
        """A part of a step's loss: parts of one step add up."""
        self._add(name, torch.stack([value.double(), torch.zeros_like(value, dtype=torch.float64)]))

    def add_share(self, name: str, part: Tensor, whole: Tensor) -> None:
        self._add(name, torch.stack([part.double(), whole.double()]))

    def _add(self, name: str, pair: Tensor) -> None:
        self.sums[name] = self.sums[name] + pair if name in self.sums else pair

    def line(self, here: World) -> dict[str, float]:
        """The numbers of all processes since the last line; then start anew."""
        if not self.sums:
            return {}
        together = here.add(torch.stack(list(self.sums.values()))).tolist()
        line = {}
        for name, (part, whole) in zip(self.sums, together, strict=True):
            line[name] = part / self.steps if name.startswith("loss") else part / max(whole, 1.0)
        self.sums, self.steps = {}, 0
        return line

    def gather(self, here: World) -> None:
        """Hand everything to the first process, which remembers for all."""
        if here.size > 1 and self.sums:
            together = here.add(torch.stack(list(self.sums.values())))
            kept = together if here.is_first else torch.zeros_like(together)
            self.sums = dict(zip(self.sums, kept.unbind(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any], here: World) -> None:
        part = 1.0 if here.is_first else 0.0
        self.sums = {name: pair.to(here.device) * part for name, pair in state["sums"].items()}
        self.steps = int(state["steps"])
