"""Cells, one after the other: train or go on, keep snapshots, evaluate, and write down the result."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from safetensors.torch import save_file

from ..engine.config import Config
from ..engine.evaluate import evaluate_run
from ..engine.load import build, plain
from ..engine.run import Run, read_metrics, remove_parts
from ..engine.train import resume, train
from ..engine.trainer import Trainer
from ..errors import RunError
from ..files import written_whole
from .grid import ELSEWHERE, LISTS
from .store import read_result, split_name, write_result

SNAPSHOTS = "snapshots"
DONE = b"done\n"
"""The answer to a job."""
FORGOTTEN: dict[str, tuple[str, ...]] = {
    "all": (),
    "networks": ("checkpoint.pt",),
    "results": ("checkpoint.pt", "last.safetensors", "best.safetensors"),
}
"""By `keep`: files of a finished run that are removed."""


@dataclass(frozen=True)
class Job:
    """What the runner asks for; it comes as a line of JSON."""

    run: str
    config: dict[str, Any]
    base: str
    dataset: str
    split: str | None
    moments: tuple[int, ...]
    keep: str
    log: str = os.devnull

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


class Jobs:
    """Jobs from a file descriptor, one after the other, until it ends. When that happens in the middle of one, the
    runner is gone, and this process saves and stops.
    """

    def __init__(self, stream: int = 0) -> None:
        self.stream, self.busy = stream, False
        self.lines: SimpleQueue[bytes | None] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        text = b""
        while more := os.read(self.stream, 1 << 16):  # not sys.stdin, which Python closes last
            *lines, text = (text + more).split(b"\n")
            for line in lines:
                self.lines.put(line)
        self.lines.put(None)
        if self.busy:
            os.kill(os.getpid(), signal.SIGINT)

    def __iter__(self) -> Iterator[Job]:
        line = self.lines.get()
        if line is None:
            raise RunError("`logicdiag experiment work` is for `logicdiag experiment`, which tells it what to do")
        while line is not None:
            self.busy = True
            yield Job(**json.loads(line))
            self.busy = False
            line = self.lines.get()


def serve(jobs: Iterable[Job], answers: int = 1) -> None:
    """Do jobs, each with its own log, and answer a line after each. One process does many, because imports, a GPU's
    context and its kernels take long to load; a job that fails ends the process.
    """
    with open(os.dup(answers), "wb", buffering=0) as runner:
        for job in jobs:
            with open(job.log, "ab") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            work(job)
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            torch.compiler.reset()
            runner.write(DONE)


def work(job: Job) -> None:
    """The run to its end, from wherever it is. Stopped, it can be done again, here or on another machine."""
    path, base = Path(job.run), Path(job.base)
    config = build(Config, job.config, path.name)
    moved = where(config, base)
    begun = time.monotonic()
    result = read_result(path)
    result.dataset = job.dataset
    try:
        if not result.trained:
            run = _train(path, config, moved, job)
            result.trained, result.device = True, str(run.record.get("device", ""))
            result.labels = run.record.get("images", {}).get("labeled")
            result.val = _on_val(run)
        if not result.is_done(job.split):
            split = None if job.split is None else found_beside(job.split, base, config)
            found = evaluate_run(path, split, device=config.train.device, overrides=moved)
            result.evaluated[split_name(job.split)] = {name: e.to_dict() for name, e in found.items()}
    finally:
        result.seconds = round(result.seconds + time.monotonic() - begun, 1)
        if (path / "config.yaml").is_file():
            write_result(path, result)
    forget(path, job.keep)


def _train(path: Path, config: Config, moved: tuple[str, ...], job: Job) -> Run:
    observe = Snapshots(path, job.moments) if job.moments else None
    if (path / "config.yaml").is_file():
        return resume(path, moved, observe)
    if path.is_dir():
        remove_parts(path)
    return train(config, path, job.base, observe)


def where(config: Config, base: Path) -> tuple[str, ...]:
    """Where data, lists and devices are now, for a run that began elsewhere."""
    settings = plain(config)
    values = {name: settings[name.partition(".")[0]][name.partition(".")[2]] for name in ELSEWHERE}
    for key in LISTS:
        if isinstance(value := settings["data"][key], str):
            values[f"data.{key}"] = found_beside(value, base, config)
    return tuple(f"{name}={json.dumps(value)}" for name, value in values.items())


def found_beside(value: str, base: Path, config: Config) -> str:
    """A list, or folder, that lies beside the experiment's file and not in the data set, by its whole path."""
    beside = base / value
    return str(beside.absolute()) if beside.exists() and not (Path(config.data.root) / value).exists() else value


class Snapshots:
    """Keeps the evaluated network at some steps, as RUN/snapshots/step-000500.safetensors."""

    def __init__(self, run: Path, moments: Sequence[int]) -> None:
        self.folder, self.moments = run / SNAPSHOTS, frozenset(moments)

    def __call__(self, trainer: Trainer) -> None:
        if trainer.done not in self.moments or not trainer.here.is_first:
            return
        self.folder.mkdir(exist_ok=True)
        weights = trainer.method.evaluated.state_dict()
        with written_whole([self.folder / f"step-{trainer.done:06d}.safetensors"]) as [part]:
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, part)


def snapshots(run: Path) -> dict[int, Path]:
    """Step -> file, of a run's snapshots."""
    return {int(file.stem.partition("-")[2]): file for file in sorted((run / SNAPSHOTS).glob("step-*.safetensors"))}


def forget(run: Path, keep: str) -> None:
    """Weights that a finished run need not keep; snapshots stay until they are measured."""
    for name in FORGOTTEN[keep]:
        (run / name).unlink(missing_ok=True)


def _on_val(run: Run) -> dict[str, Any]:
    lines = [line for line in read_metrics(run.path) if line.get("val/miou") is not None]
    if not lines:
        return {}
    best = max(lines, key=lambda line: float(line["val/miou"]))
    fingerprint = run.record.get("lists", {}).get("val", {}).get("fingerprint")
    return {
        "last": lines[-1]["val/miou"],
        "best": best["val/miou"],
        "best_step": best["step"],
        "fingerprint": fingerprint,
    }
