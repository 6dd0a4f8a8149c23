"""Everything that a run is at one moment, and the loop that moves it on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from ..data.balance import leaf_weights, shown
from ..data.cache import remembered
from ..data.dataset import Dataset
from ..data.loader import Views
from ..errors import ConfigError, RunError
from ..methods.build import METHODS, build_method
from ..methods.config import unheard
from ..methods.loss import Loss
from ..methods.method import Setting
from ..models.norm import share_batch_norm
from ..models.segmenter import Segmenter, build_model
from ..pseudo.build import PsiSetting, build_knowledge, build_psi
from ..pseudo.target import Psi
from ..pseudo.threshold import Threshold
from .arithmetic import check_arithmetic
from .batches import batches_of
from .capture import FIRST, CudaRecorder, wants_capture
from .check import check
from .config import Config
from .display import Display
from .distributed import World
from .evaluate import evaluate_model
from .fast import SEARCH, compile_method, compile_problem, in_order, keep_memory, searched, wants_compiling
from .inference import autocast
from .log import open_log, val_line, val_text
from .optimizer import Optimizer
from .pause import Pause
from .record import Record
from .run import note, save_checkpoint
from .step import Stepper
from .stop import Interrupted, stop_signals
from .watch import Watch, diverged

CHECK = 10
"""Several processes ask each other this often whether one was told to stop."""
BEGINNER, SETTLED = 100, 0.5
"""Steps, and share of a run, after which a network that knows a single class is a failure, and not a beginner."""
FAR_LARGER = 2.5
"""Images so many times larger than a crop are better predicted in windows."""


class Trainer:
    """Everything that a run is at one moment."""

    def __init__(
        self, config: Config, dataset: Dataset, here: World, path: Path, base: Path, knowledge: Any = None
    ) -> None:
        check(config, dataset, here.size)
        check_arithmetic(here.device, config.train.precision)
        keep_memory(here.device)
        self.config, self.here, self.path = config, here, path
        self.dataset = remembered(dataset, config.data.cache, here.size)
        self.shown = self._shown()
        t = config.train
        torch.manual_seed(t.seed)  # initial weights; everything later is keyed by seed, step and place
        self.knowledge = knowledge or build_knowledge(config.psi, dataset.hierarchy, base)
        networks = METHODS[config.method.name].networks
        students = [self._network(base) for _ in range(networks)]
        self.model = students[0]
        psi = self._psi()
        self.compiles, self.captures = wants_compiling(t, here), wants_capture(config, psi, here)
        self.method = build_method(
            Setting(
                students,
                psi,
                self._loss(),
                config.method,
                config.data.views,
                config.data.crop,
                t.seed,
                lambda: autocast(here.device, t.precision),
                here.gather,
                t.steps,
            )
        )
        self.optimizer = Optimizer(
            students,
            config.optimizer,
            t.steps,
            t.precision,
            here.device.type,
            self.method.heads,
            self.method.restarts(t.steps),
        )
        self.record = Record()
        self.stepper = Stepper(self.method, self.optimizer, self.record, here, t)
        self.done = 0
        self.best: dict[str, float] | None = None
        self.val_every = t.val_every or max(1, t.steps // 10)
        self.save_every = t.save_every or self.val_every

    def _network(self, base: Path) -> Segmenter:
        """One to train, on its device; another call starts from other random weights."""
        model = build_model(self.config.model, self.dataset.hierarchy, base).to(self.here.device)
        model = share_batch_norm(model).train()
        self.here.same(model)
        if self.here.device.type == "cuda" or self.config.train.precision == "bf16":
            in_order(model)
        return model

    def _loss(self) -> Loss:
        c, h = self.config, self.dataset.hierarchy
        weights = None
        if c.loss.balance:
            weights = torch.from_numpy(leaf_weights(self.dataset.labeled, len(h.leaves), c.loss.balance))
            weights = weights.to(self.here.device)
        return Loss(c.loss, h, c.model.head, c.train.seed, c.model.decision, weights)

    def _shown(self) -> dict[int, list[int]] | None:
        """The labelled images of each class, where classes are drawn."""
        if self.config.data.sampling == "images":
            return None
        found = shown(self.dataset.labeled, len(self.dataset.hierarchy.leaves))
        if not found:
            raise ConfigError("data.sampling is classes, but no labelled mask shows any class; expected images")
        return found

    def _psi(self) -> Psi:
        c = self.config
        if not METHODS[c.method.name].needs_unlabeled:
            return Threshold(self.dataset.hierarchy, 1.0, c.model.head)  # never asked
        reduce = self.here.most if c.psi.quantifier == "min" else self.here.add
        return build_psi(
            PsiSetting(
                c.psi, self.knowledge, c.model.head, c.train.seed, reduce, c.model.decision, self.dataset.witness
            )
        )

    def facts(self) -> dict[str, Any]:
        """For the run's record."""
        where = torch.cuda.get_device_name(self.here.device) if self.here.device.type == "cuda" else "cpu"
        return {
            "device": where,
            "processes": self.here.size,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "images": {
                "labeled": len(self.dataset.labeled),
                "unlabeled": len(self.dataset.unlabeled),
                "val": len(self.dataset.val),
            },
        }

    def _told(self) -> str:
        """What this run is, in a line."""
        c, d = self.config, self.dataset
        psi = f" + {c.psi.name}" if self.method.needs_unlabeled else ""
        images = f"{len(d.labeled)} labelled, {len(d.unlabeled)} unlabelled, {len(d.val)} validation images"
        return (
            f"{self.path}: {c.method.name}{psi}, {c.model.head} head, {c.model.encoder}; {images}; "
            f"{self.facts()['device']}{f', {self.here.size} processes' * (self.here.size > 1)}"
        )

    def _advice(self) -> str | None:
        """Networks that learn from small crops say less of large images as a whole."""
        c = self.config
        if c.inference.mode != "whole" or not self.dataset.val:
            return None
        height, width = self.dataset.val[0].image().shape[:2]
        if max(height, width) < FAR_LARGER * c.data.crop:
            return None
        return (
            f"validation images ({width} x {height}) are much larger than data.crop ({c.data.crop}); predict them in "
            f"windows if scores are poor: inference.mode=slide inference.size={c.data.crop}"
        )

    # ---- the loop ------------------------------------------------------------------------------

    def prepare(self, warn: Callable[[str], None]) -> int:
        """Compile and capture what is to be; how many of the next steps take part in it."""
        if self.compiles and (problem := compile_problem(self.here.device)) is not None:
            warn(f"the networks are not compiled, and training is slower: {problem}")
            self.compiles = False
        if self.compiles:
            compile_method(self.method)
        if self.captures:
            self.stepper.capture_with(CudaRecorder(self.here.device), warn)
        return FIRST + 1 if self.captures else int(self.compiles)

    def _started(self, display: Display, steps: int, seconds: float) -> None:
        """Say and keep what the start took."""
        captured = self.stepper.capture is not None
        done = ["compiling the networks"] * self.compiles + ["capturing the step"] * captured
        first = "the first step" if steps == 1 else f"the first {steps} steps"
        display.say(f"{first} took {seconds:.0f} s, {' and '.join(done) or 'nothing'} included")
        display.begin(self.done)
        if self.here.is_first:
            start = {"steps": steps, "seconds": seconds, "compiled": self.compiles, "captured": captured}
            note(self.path, {"start": start})

    def run(self, observe: Callable[[Trainer], None] | None = None) -> None:
        t = self.config.train
        with ExitStack() as stack:
            display = stack.enter_context(Display(t.steps, self.done, self.here.is_first))
            log = stack.enter_context(open_log(self.path, self.done, self.here.is_first))
            stopped = stack.enter_context(stop_signals())
            batches = self._batches(stack)
            watch = Watch(display.warn)
            display.say(self._told())
            for advice in (self._advice(), unheard(self.config.method)):
                if advice is not None:
                    display.warn(advice)
            begun, first = time.perf_counter(), self.done
            ready = first + self.prepare(display.warn)
            stack.enter_context(searched(self.here.device, t.steps >= SEARCH))
            while self.done < t.steps:
                self._step(next(batches))
                self.done += 1
                if self.done == ready:
                    self.here.finish()
                    self._started(display, ready - first, time.perf_counter() - begun)
                display.step(self.done)
                if observe is not None:
                    observe(self)
                if self.done % t.log_every == 0 or self.done == t.steps:
                    line = self._line()
                    log({"step": self.done, **line})
                    display.metrics(self.done, line)
                    watch.metrics(self.done, line, self.method.weight_at((self.done - 1) / t.steps))
                improved = False
                if self.dataset.val and (self.done % self.val_every == 0 or self.done == t.steps):
                    improved = self._validate(log, display, watch)
                asked = stopped() if self.here.size == 1 else self.done % CHECK == 0 and self.here.any(stopped())
                if improved or asked or self.done % self.save_every == 0 or self.done == t.steps:
                    self._save(improved)
                if asked and self.done < t.steps:
                    raise Interrupted(self.path, self.done, t.steps)

    def _batches(self, stack: ExitStack) -> Iterator[list[tuple[Views, Views | None]]]:
        """The micro-batches of each step, from where the run stands; between two of them, a method may pause."""
        return batches_of(self, stack)

    def pause(self, index: int) -> None:
        """Let the method do what it does before a step."""
        with searched(self.here.device, False):  # images come in many sizes
            self.method.pause(index, Pause(self.config, self.dataset, self.here, self.optimizer))

    def _step(self, batches: list[tuple[Views, Views | None]]) -> None:
        self.stepper(self.done, batches)

    def _line(self) -> dict[str, float]:
        line = self.record.line(self.here)
        line["lr"] = self.optimizer.rate(self.done - 1)
        return line

    # ---- now and then --------------------------------------------------------------------------

    def _validate(self, log: Callable[[dict[str, Any]], None], display: Display, watch: Watch) -> bool:
        """Evaluate on `data.val`; whether it is the best so far."""
        self._refuse_no_numbers()
        with searched(self.here.device, False):  # images come in many sizes
            found = evaluate_model(
                self.method.evaluated,
                self.dataset.val,
                self.dataset.hierarchy,
                self.knowledge,
                self.config.inference,
                self.here.device,
                self.config.train.precision,
                rank=self.here.rank,
                world=self.here.size,
                workers=self.config.data.workers,
            )
        log({"step": self.done, **val_line(found)})
        display.say(f"step {self.done}: {val_text(found)}")
        if self.done > max(SETTLED * self.config.train.steps, BEGINNER):
            watch.predictions(self.done, found.confusion, self.dataset.hierarchy.leaves)
        if not math.isnan(found.miou) and (self.best is None or found.miou > self.best["miou"]):
            self.best = {"miou": found.miou, "step": self.done}
            return True
        return False

    def _refuse_no_numbers(self) -> None:
        """Weights and statistics that are no numbers stay so; the last checkpoint is worth more."""
        for network in (*self.method.students, self.method.evaluated):
            if not all(bool(tensor.isfinite().all()) for tensor in network.state_dict().values()):
                raise diverged(self.done)

    def _save(self, improved: bool) -> None:
        self._refuse_no_numbers()
        self.record.gather(self.here)
        if self.here.is_first:
            save_checkpoint(self.path, self.state(), self.method.evaluated, improved)
        self.here.wait()

    def state(self) -> dict[str, Any]:
        return {
            "done": self.done,
            "best": self.best,
            "model": self.model.state_dict(),
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "record": self.record.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        try:
            self.done, self.best = int(state["done"]), state["best"]
            self.model.load_state_dict(state["model"])
            self.method.load_state_dict(state["method"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.record.load_state_dict(state["record"], self.here)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error).splitlines()[0]
            raise RunError(f"{self.path}: the checkpoint does not fit config.yaml: {reason}") from None
