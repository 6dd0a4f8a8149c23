"""What a method says of itself if it does not do the same in all steps of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from ..models.segmenter import Segmenter


class Between(Protocol):
    """What a run does for a method between two steps."""

    @property
    def steps(self) -> int:
        """Of the whole run."""
        ...

    def measure(self, networks: Sequence[Segmenter], score: Callable[[Sequence[Tensor]], float]) -> list[float]:
        """The score of each unlabelled image, by the leaves that the networks predict at its pixels."""
        ...

    def restart(self) -> None:
        """Let the optimiser forget how it was moving."""
        ...


class Stages:
    """A run is one stage, unless a method says more."""

    def restarts(self, steps: int) -> tuple[int, ...]:
        """Where in a run of so many steps the learning rate begins anew."""
        return (0,)

    def pauses(self, steps: int) -> tuple[int, ...]:
        """Before which steps `pause` is called."""
        return ()

    def pause(self, index: int, between: Between) -> None:
        """Before step `index`; a checkpoint there is written before."""

    @property
    def offered(self) -> Sequence[int] | None:
        """The unlabelled images that are learned from now, by number; None: all of them; empty: none, and steps have no
        unlabelled views. It changes in a pause, if at all.
        """
        return None

    @property
    def frozen(self) -> tuple[Segmenter, ...]:
        """Networks that make labels, and follow no student."""
        return ()
