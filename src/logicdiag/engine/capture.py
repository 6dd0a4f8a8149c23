"""A training step as one CUDA graph: captured once, replayed from then on, so that no kernel waits for its launch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from ..data.loader import Views
from ..errors import ConfigError
from ..plan import Layout, Plan, Planned, moved
from ..pseudo.target import Psi
from .config import Config
from .distributed import World

Batches = Sequence[tuple[Views, Views | None]]
"""The labelled and unlabelled views of each micro-batch of a step."""
Move = Callable[[int, Batches, Sequence[Planned]], None]
"""A step: its index, its micro-batches, and their plans."""

FIRST = 3
"""Steps that run as they are before one is captured: everything that is made at first use is then there."""


def wants_capture(config: Config, psi: Psi, here: World) -> bool:
    """Left open, steps are captured wherever they can be."""
    reason = _reason(config, psi, here)
    if config.train.capture and reason is not None:
        raise ConfigError(f"train.capture is true, but {reason}; leave it null")
    return config.train.capture is not False and reason is None


def _reason(config: Config, psi: Psi, here: World) -> str | None:
    """Why steps cannot be captured."""
    t = config.train
    if here.device.type != "cuda":
        return f"only steps on a CUDA device can be captured, and train.device is {here.device.type}"
    if here.size > 1:
        return f"this run has {here.size} processes, and steps of one alone can be captured"
    if t.accumulate > 1:
        return f"train.accumulate is {t.accumulate}, and steps of one part alone can be captured"
    if t.precision == "fp16":
        return "train.precision is fp16, whose loss scale is decided on the host"
    if psi.waits:
        return f"psi.name is {config.psi.name}, which asks the host here"
    return None


class Recorder(Protocol):
    """What runs work aside, and what records it."""

    def aside(self, work: Callable[[], None]) -> None: ...

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Do not run the work, but return what does."""
        ...


class CudaRecorder:
    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)

    def aside(self, work: Callable[[], None]) -> None:
        """On a stream of its own, as torch wants it before a capture."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            work()
        torch.cuda.current_stream().wait_stream(self.stream)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        gc.collect()  # what another run left is not to be freed meanwhile
        try:
            # Threads that load images pin memory meanwhile, which is none of the graph's business.
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                work()
        except BaseException:
            torch.cuda.set_stream(before)  # torch stays on the other one if the capture cannot be ended
            raise
        return graph.replay


class Capture:
    """Runs steps of one micro-batch: the first as they are, then one is captured, and replayed from then on.

    All that changes from step to step are the views and the plan: they are copied to where the captured step reads
    them. Weights, statistics and the record stay where they are, and everybody else finds them there.
    """

    def __init__(self, move: Move, device: torch.device, recorder: Recorder) -> None:
        self.move, self.device, self.recorder = move, device, recorder
        self.left = FIRST
        self.captured: _Captured | None = None

    def __call__(self, index: int, batches: Batches, plans: Sequence[Plan]) -> None:
        ((labeled, unlabeled),), (plan,) = batches, plans
        if self.captured is not None:
            self.captured.fill(labeled, unlabeled, plan)
        elif self.left:
            self.left -= 1
            planned = [moved(plan, self.device)]
            self.recorder.aside(lambda: self.move(index, batches, planned))
            return
        else:
            self.captured = _Captured(self, index, labeled, unlabeled, plan)
        self.captured.replay()


class _Captured:
    """A step and the tensors it reads."""

    def __init__(self, how: Capture, index: int, labeled: Views, unlabeled: Views | None, plan: Plan) -> None:
        self.pinned = how.device.type == "cuda"
        self.layout = Layout(plan)
        self.plan = self.layout.pack(plan, self.pinned).to(how.device, copy=True)
        self.labeled, self.unlabeled = _own(labeled), None if unlabeled is None else _own(unlabeled)
        batches, plans = [(self.labeled, self.unlabeled)], [self.layout.unpack(self.plan)]
        self.replay = how.recorder.record(lambda: how.move(index, batches, plans))

    def fill(self, labeled: Views, unlabeled: Views | None, plan: Plan) -> None:
        self.plan.copy_(self.layout.pack(plan, self.pinned), non_blocking=True)
        _copy(self.labeled, labeled)
        if self.unlabeled is not None and unlabeled is not None:
            _copy(self.unlabeled, unlabeled)


def _own(views: Views) -> Views:
    leaf = None if views.leaf is None else views.leaf.clone()
    heard = None if views.heard is None else views.heard.clone()
    return replace(views, image=views.image.clone(), leaf=leaf, valid=views.valid.clone(), heard=heard)


def _copy(to: Views, views: Views) -> None:
    to.image.copy_(views.image)
    to.valid.copy_(views.valid)
    if to.leaf is not None and views.leaf is not None:
        to.leaf.copy_(views.leaf)
    if to.heard is not None and views.heard is not None:
        to.heard.copy_(views.heard)
