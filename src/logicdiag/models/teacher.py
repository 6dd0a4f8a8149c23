"""The averaged teacher: a moving average of the student's weights, never trained."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import OptionError


class AveragedTeacher(nn.Module):
    """A frozen copy of the student, `model`, that follows it.

    >>> student = nn.Linear(1, 1)
    >>> teacher = AveragedTeacher(student, decay=0.99)
    >>> teacher.update(student, step=0)         # the first steps average all students so far: 1 - 1 / (step + 1)
    >>> teacher.decay_at(0), teacher.decay_at(1), teacher.decay_at(10_000)
    (0.0, 0.5, 0.99)

    A decay of 0 makes it a plain copy. Buffers, such as the statistics of batch norm, are copied. It stays in eval mode
    and wants no gradients, whatever is asked of the module that holds it.
    """

    def __init__(self, student: nn.Module, decay: float = 0.99) -> None:
        super().__init__()
        if not 0 <= decay <= 1:
            raise OptionError(f"the teacher's decay is {decay}, expected a number from 0 to 1")
        self.decay = decay
        self.model = copy.deepcopy(student).requires_grad_(False).eval()

    def decay_at(self, step: int) -> float:
        return min(1 - 1 / (step + 1), self.decay)

    @torch.no_grad()
    def update(self, student: nn.Module, step: int, decay: Tensor | None = None) -> None:
        """Follow the student after optimiser step `step`, counted from 0; it may be wrapped (DDP, `torch.compile`).

        `decay` is `decay_at(step)` as a tensor on the device, where the step is captured once and replayed with others.
        """
        mine: list[Tensor] = list(self.model.parameters())
        theirs: list[Tensor] = list(student.parameters())
        if decay is not None and mine:
            torch._foreach_mul_(mine, decay)
            torch._foreach_add_(mine, torch._foreach_mul(theirs, 1 - decay))
        elif self.decay_at(step) == 0:
            _copy(mine, theirs)
        elif mine:
            torch._foreach_lerp_(mine, theirs, 1 - self.decay_at(step))
        _copy(list(self.model.buffers()), list(student.buffers()))

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def train(self, mode: bool = True) -> AveragedTeacher:
        return super().train(False)

    def requires_grad_(self, requires_grad: bool = True) -> AveragedTeacher:
        return super().requires_grad_(False)


def _copy(to: list[Tensor], source: list[Tensor]) -> None:
    """In one call for each type of number."""
    for dtype in {tensor.dtype for tensor in to}:
        pairs = [(mine, theirs) for mine, theirs in zip(to, source, strict=True) if mine.dtype == dtype]
        torch._foreach_copy_([mine for mine, _ in pairs], [theirs for _, theirs in pairs])
