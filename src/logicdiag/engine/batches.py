"""The views of a run, step by step, from where it stands; in a pause, a method may choose other images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING

from ..data.dataset import Photo
from ..data.loader import Loader, Views

if TYPE_CHECKING:
    from .trainer import Trainer


def batches_of(trainer: Trainer, stack: ExitStack) -> Iterator[list[tuple[Views, Views | None]]]:
    """The micro-batches of each step, labelled and unlabelled; the stack closes what loads them."""
    t, method, data = trainer.config.train, trainer.method, trainer.dataset
    labeled = _loader(trainer, stack, "labeled", data.labeled, t.labeled_batch, trainer.done, trainer.shown)
    pauses, begun = frozenset(method.pauses(t.steps)), False
    unlabeled: Loader | None = None
    for index in count(trainer.done):
        before = method.offered
        if index in pauses:
            trainer.pause(index)
        if not begun or method.offered != before:
            if unlabeled is not None:
                unlabeled.close()
            chosen = _chosen(data.unlabeled, method.offered) if method.needs_unlabeled else ()
            unlabeled = _loader(trainer, stack, "unlabeled", chosen, t.unlabeled_batch, index) if chosen else None
            if begun:
                trainer.stepper.capture_again()  # of a step that may have unlabelled views now
            begun = True
        yield [(next(labeled), None if unlabeled is None else next(unlabeled)) for _ in range(t.accumulate)]


def _chosen(items: Sequence[Photo], numbers: Sequence[int] | None) -> Sequence[Photo]:
    return items if numbers is None else [items[number] for number in numbers]


def _loader(
    trainer: Trainer,
    stack: ExitStack,
    stream: str,
    items: Sequence[Photo],
    batch: int,
    start: int,
    shown: dict[int, list[int]] | None = None,
) -> Loader:
    t, d, here = trainer.config.train, trainer.config.data, trainer.here
    return stack.enter_context(
        Loader(
            items,
            batch=batch,
            crop=d.crop,
            scale=d.scale,
            flip=d.flip,
            seed=t.seed,
            stream=stream,
            device=here.device,
            workers=d.workers,
            start=start,
            part=here.rank,
            parts=here.size,
            accumulate=t.accumulate,
            shown=shown,
        )
    )
