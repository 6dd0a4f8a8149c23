"""A few steps of every method, with every psi and head, on small scenes; as a script, those of one of two processes."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

import torch

from logicdiag.data.open import open_dataset
from logicdiag.engine.distributed import World, world
from logicdiag.engine.trainer import Trainer
from logicdiag.methods.build import METHODS
from tests.engine.small import config

from .tester import ARRANGED

CELLS = [(method, psi, head) for method in METHODS for psi, head in ARRANGED]
SHARED = [(method, *ARRANGED[0]) for method in METHODS]
"""Those that two processes run: with diagnosis, which shares the most."""


def trainer(
    method: str, psi: str, head: str, here: World | None = None, more: dict[str, Any] | None = None, **train: Any
) -> Trainer:
    """`more`: of psi and of the model."""
    more = more or {}
    c = config(
        data={"val": None, "views": {"cutmix": 1.0}},
        model={"head": head, **more.get("model", {})},
        method={"name": method, "teacher_decay": None},
        psi={"name": psi, "threshold": 0.1, **more.get("psi", {})},
        loss={"nodes": "sum"},  # its steps are large, and take networks away from where they start
        train={"labeled_batch": 4, "unlabeled_batch": 4, **train},
    )
    made = Trainer(c, open_dataset(c.data), here or World(), None, None)  # type: ignore[arg-type]
    if method == "u2pl":  # it ranks pixels, which for a network that starts are as sure as each other but for rounding
        for network in (*made.method.students, *(teacher.model for teacher in made.method.teachers)):
            network.classifier.weight.data.mul_(50)
    return made


def steps(made: Trainer, count: int) -> list[dict[str, float]]:
    """The lines of metrics of some steps."""
    lines = []
    with ExitStack() as stack:
        batches = made._batches(stack)
        for _ in range(count):
            made._step(next(batches))
            made.done += 1
            lines.append(made._line())
    return lines


def ran(cell: tuple[str, str, str], here: World) -> dict[str, Any]:
    made = trainer(*cell, here)
    return {"lines": steps(made, 3), "model": made.model.state_dict(), "method": made.method.state_dict()}


if __name__ == "__main__":
    with world("cpu") as joined:
        found = {cell[0]: ran(cell, joined) for cell in SHARED}
        if joined.is_first:
            torch.save(found, sys.argv[1])
