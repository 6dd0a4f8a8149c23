"""Runs tasks, several side by side. Each process does one after the other, until one fails in it.

What is done is skipped and what was begun goes on. One that fails is named at the end and does not stop the others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from select import select

from ..data.open import open_dataset, open_split
from ..engine.config import Config
from ..engine.load import plain
from ..engine.stop import stop_signals
from ..errors import ConfigError, DataError, LogicDiagError
from .expect import Expectation
from .show import Show
from .store import last_step, last_words, read_result
from .task import Task, unique
from .worker import DONE, Job, found_beside

COMMAND = (sys.executable, "-m", "logicdiag", "experiment", "work")
LOOK = 0.2
"""Seconds between two looks at the processes."""
PATIENCE = 120.0
"""Seconds that a process has to end its step, save and stop."""


@dataclass
class Running:
    task: Task
    process: subprocess.Popen[bytes]
    slot: int
    begun: float
    start: int
    """The step it went on from."""
    log: Path = field(default_factory=Path)
    step: int = 0
    first: tuple[int, float] | None = None
    """The first step that was seen, and when."""
    last: tuple[int, float] | None = None

    def see(self, step: int, now: float) -> None:
        """Note how far it is."""
        if step > max(self.start, self.step):
            self.step, self.last = step, (step, now)
            self.first = self.first or self.last

    def per_step(self) -> float | None:
        """Seconds, without the start; None: not known yet."""
        if self.first is None or self.last is None or self.last[0] == self.first[0]:
            return None
        return (self.last[1] - self.first[1]) / (self.last[0] - self.first[0])

    def has_ended(self) -> bool:
        """Whether the process says so, or is no more."""
        if self.process.poll() is not None:
            return True
        assert self.process.stdout is not None
        return bool(select([self.process.stdout], [], [], 0)[0]) and self.process.stdout.read(len(DONE)) == DONE


@dataclass
class Outcome:
    """What came of it; every task stands in one of the lists."""

    done: list[Task] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Name -> the last words of its log."""
    left: list[Task] = field(default_factory=list)
    """Not begun, or stopped on the way."""
    stopped: str = ""
    """Why there are some left: `interrupted` or `time`."""


class Runner:
    def __init__(
        self,
        tasks: Sequence[Task],
        show: Show,
        jobs: int = 1,
        devices: Sequence[str] = (),
        minutes: float | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.show, self.command = show, tuple(command)
        self.tasks = unique(tasks)
        self.jobs, self.devices, self.minutes = jobs, devices, minutes
        self.running: list[Running] = []
        self.idle: dict[int, subprocess.Popen[bytes]] = {}
        """By slot: processes that wait for their next task."""
        self.expect = Expectation(jobs)
        self.outcome = Outcome()

    def run(self) -> Outcome:
        with ExitStack() as locks, stop_signals() as asked:
            for store in dict.fromkeys(task.store for task in self.tasks):
                locks.enter_context(store.locked())
            waiting = self._waiting()
            begun = time.monotonic()
            deadline = None if self.minutes is None else begun + 60 * self.minutes
            try:
                with self.show:
                    self._loop(waiting, deadline, asked)
            finally:
                for one in self.running:  # a second Ctrl-C, or an error: nothing may stay behind
                    end(one.process)
                self._dismiss()
        return self.outcome

    def _waiting(self) -> list[Task]:
        waiting: list[Task] = []
        for task in self.tasks:
            (self.outcome.done if task.state() == "done" else waiting).append(task)
        for dataset in dict.fromkeys(task.cell.dataset for task in waiting):
            _try_data([task for task in (*waiting, *self.outcome.done) if task.cell.dataset == dataset])
        _try_evaluated(waiting)
        return waiting

    # ---- the loop ------------------------------------------------------------------------------

    def _loop(self, waiting: list[Task], deadline: float | None, asked: Callable[[], bool]) -> None:
        while waiting or self.running:
            now = time.monotonic()
            if asked():
                self._stop("interrupted")
                break
            if deadline is not None and now >= deadline:
                self._stop("time")
                break
            for one in [one for one in self.running if one.has_ended()]:
                self._ended(one)
            if not waiting:
                self._dismiss()
            if not self._start_some(waiting, now, deadline) and not self.running:
                self.outcome.stopped = "time"
                break
            for one in self.running:
                one.see(last_step(one.task.run), now)
            self.show.update(self.outcome, self.running, waiting, self.expect.left(self.running, waiting))
            time.sleep(LOOK)
        self.outcome.left += waiting

    def _start_some(self, waiting: list[Task], now: float, deadline: float | None) -> bool:
        """Fill the free places; whether there was anything to wait for that may begin now."""
        began = not waiting
        for task in list(waiting):
            if len(self.running) >= self.jobs:
                return True
            if any(one.task.identity == task.identity for one in self.running):
                continue  # to be evaluated on another list, when it is trained
            left = None if deadline is None else deadline - now
            if left is not None and not self._fits(task, left, new=not self.idle):
                continue
            waiting.remove(task)
            self._start(task)
            began = True
        return began

    def _fits(self, task: Task, left: float, new: bool = True) -> bool:
        """Whether a task should end in time; one that a whole budget is too short for goes on piece by piece."""
        assert self.minutes is not None
        expected = self.expect.seconds(task, self.running, new)
        return expected is None or expected <= left or expected > 60 * self.minutes

    def _start(self, task: Task) -> None:
        slots = {one.slot for one in self.running}
        slot = min((i for i in range(self.jobs) if i not in slots), key=lambda i: i not in self.idle)
        run, log, e = task.run, task.log, task.experiment
        job = Job(
            run=str(run),
            config=plain(self._config(task, slot)),
            base=e.folder,
            dataset=e.dataset,
            split=e.evaluate,
            moments=e.moments(task.steps),
            keep=e.keep,
            log=str(log),
        )
        log.parent.mkdir(parents=True, exist_ok=True)
        task.store.fail(task.cell, None)
        with open(log, "ab") as file:
            file.write(f"---- {time.strftime('%Y-%m-%d %H:%M:%S')} {task.name}: {run}\n".encode())
            file.flush()
            process = self.idle.pop(slot, None)
            if process is None or process.poll() is not None:
                process = subprocess.Popen(
                    self.command,
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,  # until it has its job
                    env=self._environment(),
                    start_new_session=True,  # Ctrl-C reaches the runner alone, which then asks each of them once
                )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it ended at once; its log says why
            process.stdin.write(job.line().encode())  # and stays open: when it ends, so has the runner
        start = last_step(run)
        self.running.append(Running(task, process, slot, time.monotonic(), start, log, start))
        self.show.say(f"{task.name}: {f'goes on from step {start}' if start else 'begins'}")

    def _config(self, task: Task, slot: int) -> Config:
        """With the device of this place."""
        config = task.config
        device = self.devices[slot % len(self.devices)] if self.devices else config.train.device
        return replace(config, train=replace(config.train, device=device))

    def _environment(self) -> dict[str, str]:
        """The cores are shared, unless the user has said how."""
        share = str(max(1, (os.cpu_count() or 1) // self.jobs))
        threads = {"OMP_NUM_THREADS": share, "TORCHINDUCTOR_COMPILE_THREADS": share}
        return {**threads, "PYTHONUNBUFFERED": "1", **os.environ}

    # ---- ends ----------------------------------------------------------------------------------

    def _ended(self, one: Running) -> None:
        self.running.remove(one)
        task = one.task
        if (code := one.process.poll()) is None:
            self.idle[one.slot] = one.process
        else:
            end(one.process)
        if not code and task.state() == "done":
            self.outcome.done.append(task)
            self.expect.learn(one, time.monotonic())
            found, split = read_result(task.run), task.experiment.evaluate
            last, best = found.miou(split, "last"), found.miou(split, "best")
            self.show.say(f"{task.name}: done{'' if last is None else f', mIoU {last:.2f} (best {best:.2f})'}")
            return
        why = last_words(one.log)
        if code is not None and code < 0:
            why = f"killed by {signal.Signals(-code).name} (its last words: {why})"
        task.store.fail(task.cell, why)
        self.outcome.failed[task.name] = why
        self.show.say(f"{task.name}: failed: {why}")

    def _stop(self, why: str) -> None:
        """Ask everyone to save and stop, and wait for them."""
        self.outcome.stopped = why
        if self.running:
            several = len(self.running) > 1
            self.show.say(f"stopping {len(self.running)} {'runs, which save' if several else 'run, which saves'} first")
        for one in self.running:
            one.process.send_signal(signal.SIGINT)
        until = time.monotonic() + PATIENCE
        for one in list(self.running):
            end(one.process, max(0.1, until - time.monotonic()))
            self.running.remove(one)
            (self.outcome.done if one.task.state() == "done" else self.outcome.left).append(one.task)

    def _dismiss(self) -> None:
        """There is no more to do for those who wait."""
        for process in self.idle.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self.idle.values():
            end(process, PATIENCE)
        self.idle.clear()


def end(process: subprocess.Popen[bytes], seconds: float = 0.0) -> None:
    """Wait so long for a process to end, and end it if it does not."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _try_evaluated(tasks: Sequence[Task]) -> None:
    """What is to be evaluated on when a run is trained must be there before, for one run of an experiment at least."""
    first: dict[str, ConfigError | None] = {}
    for task in {(task.experiment.name, repr(task.cell.config.data)): task for task in tasks}.values():
        e, config = task.experiment, task.cell.config
        if e.evaluate is None or first.get(e.name, True) is None:
            continue
        try:
            open_split(config.data, Path(e.folder), found_beside(e.evaluate, Path(e.folder), config))
            first[e.name] = None
        except LogicDiagError as error:
            first.setdefault(e.name, ConfigError(f"{e.source}: evaluate is {e.evaluate!r}: {error}"))
    for problem in filter(None, first.values()):
        raise problem


def _try_data(tasks: Sequence[Task]) -> None:
    """Data that no task could open are named once, before anything starts."""
    first: DataError | None = None
    for task in {(task.experiment.folder, repr(task.cell.config.data)): task for task in tasks}.values():
        try:
            open_dataset(task.cell.config.data, Path(task.experiment.folder))
            return
        except DataError as error:
            first = first or error
    if first is not None:
        raise first
