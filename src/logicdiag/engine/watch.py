"""Watches a run for the ways in which semi-supervised training goes wrong, and says what to try."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..errors import RunError

FEW = 1e-3
"""Fewer counted pixels than this are none."""
PATIENCE = 10
"""Lines of metrics without a counted pixel before it is said."""
NO_NUMBER = 3
"""Lines of metrics in a row whose loss is no number before the run is ended."""
ALL = 0.999


TRY = "try a lower optimizer.lr, optimizer.clip=1, optimizer.warmup=200, or train.precision=bf16 instead of fp16"


def diverged(step: int) -> RunError:
    """The end of a run whose network gives no numbers any more."""
    return RunError(
        f"step {step}: the network has diverged, its outputs are no numbers; checkpoints are from before; {TRY}"
    )


class Watch:
    """Tells each kind of trouble once, through `say`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.told: set[str] = set()
        self.uncounted = self.no_number = 0

    def metrics(self, step: int, line: Mapping[str, float], weight: float) -> None:
        """One line of metrics; `weight` is lambda at that step."""
        loss = line["loss"]
        if math.isfinite(loss):
            self.no_number = 0
        else:
            self.no_number += 1
            self._tell("nan", f"step {step}: the loss is {loss}; {TRY}")
            if self.no_number >= NO_NUMBER:
                raise diverged(step)
        if "counted" in line and weight > 0:
            self.uncounted = self.uncounted + 1 if line["counted"] < FEW else 0
            if self.uncounted >= PATIENCE:
                self._tell(
                    "uncounted",
                    f"step {step}: for {self.uncounted} lines of metrics no unlabelled pixel has counted; try a lower "
                    "psi.threshold, psi.name=diagnosis, or longer training on the labels first (method.ramp; st++: "
                    "method.stages.shares)",
                )

    def predictions(self, step: int, confusion: Tensor, names: tuple[str, ...]) -> None:
        """A confusion matrix (truth x prediction) of the validation images."""
        predicted, truth = confusion.sum(0), confusion.sum(1)
        share = predicted / predicted.sum().clamp(min=1)
        most = int(share.argmax())
        if bool(share[most] > ALL) and int(torch.count_nonzero(truth)) > 1:
            self._tell(
                "one class",
                f"step {step}: {names[most]!r} is predicted at {100 * float(share[most]):.1f} % of all pixels; try a "
                "lower optimizer.lr, a smaller method.weight, or a later method.ramp (st++: method.stages.shares)",
            )

    def _tell(self, kind: str, message: str) -> None:
        if kind not in self.told:
            self.told.add(kind)
            self.say(message)
