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
ANCHORED = {"method": {"u2pl": {"confidence": 0.0}}}
"""With which networks that start have anchors, too, and u2pl's contrast is not 0."""


def trainer(
    method: str, psi: str, head: str, here: World | None = None, more: dict[str, Any] | None = None, **train: Any
) -> Trainer:
    """`more`: of the method, psi, the model and the optimiser."""
    more = more or {}
    c = config(
        data={"val": None, "views": {"cutmix": 1.0}},
        model={"head": head, **more.get("model", {})},
        method={"name": method, "teacher_decay": None, **more.get("method", {})},
        psi={"name": psi, "threshold": 0.1, **more.get("psi", {})},
        optimizer=more.get("optimizer", {}),
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


def ran(cell: tuple[str, str, str], here: World) -> list[dict[str, Any]]:
    """Of u2pl, the contrast of one step beside: in the next, rounding decides which of two pixels is surer. Of st++, as
    many steps as reach its last stage.
    """
    runs = [(trainer(*cell, here), 5 if cell[0] == "st++" else 3)]
    if cell[0] == "u2pl":
        runs.append((trainer(*cell, here, ANCHORED), 1))
    return [
        {"lines": steps(made, count), "model": made.model.state_dict(), "method": made.method.state_dict()}
        for made, count in runs
    ]


if __name__ == "__main__":
    with world("cpu") as joined:
        found = {"-".join(cell): ran(cell, joined) for cell in CELLS}
        if joined.is_first:
            torch.save(found, sys.argv[1])
