"""Runs the cells of an experiment, several side by side. Each process does one after the other, until one fails in it.

What is done is skipped and what was begun goes on. A cell that fails is named at the end and does not stop the others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from select import select

from ..data.open import open_dataset
from ..engine.config import Config
from ..engine.load import plain
from ..engine.stop import stop_signals
from ..errors import DataError
from .config import Experiment
from .expect import Expectation
from .grid import Cell, unique
from .show import Show
from .store import Store, last_step, last_words, read_result
from .worker import DONE, Job

COMMAND = (sys.executable, "-m", "logicdiag", "experiment", "work")
LOOK = 0.2
"""Seconds between two looks at the processes."""
PATIENCE = 120.0
"""Seconds that a process has to end its step, save and stop."""


@dataclass
class Running:
    cell: Cell
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
    """What came of it; every cell stands in one of the lists."""

    done: list[Cell] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Cell -> the last words of its log."""
    left: list[Cell] = field(default_factory=list)
    """Not begun, or stopped on the way."""
    stopped: str = ""
    """Why there are some left: `interrupted` or `time`."""


class Runner:
    def __init__(
        self,
        experiment: Experiment,
        cells: Sequence[Cell],
        show: Show,
        minutes: float | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.e, self.show, self.command = experiment, show, tuple(command)
        self.store = Store(experiment.out_folder)
        self.cells = unique(cells)
        self.minutes = minutes
        self.running: list[Running] = []
        self.idle: dict[int, subprocess.Popen[bytes]] = {}
        """By slot: processes that wait for their next cell."""
        self.expect = Expectation(self.store, experiment)
        self.outcome = Outcome()

    def run(self) -> Outcome:
        with self.store.locked(), stop_signals() as asked:
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

    def _waiting(self) -> list[Cell]:
        waiting: list[Cell] = []
        for cell in self.cells:
            done = self.store.state(cell, self.e.evaluate) == "done"
            (self.outcome.done if done else waiting).append(cell)
        if waiting:
            self._try_data(waiting)
        return waiting

    def _try_data(self, cells: Sequence[Cell]) -> None:
        """Data that no cell could open are named once, before anything starts."""
        first: DataError | None = None
        for config in {repr(cell.config.data): cell.config for cell in cells}.values():
            try:
                open_dataset(config.data, Path(self.e.folder))
                return
            except DataError as error:
                first = first or error
        if first is not None:
            raise first

    # ---- the loop ------------------------------------------------------------------------------

    def _loop(self, waiting: list[Cell], deadline: float | None, asked: Callable[[], bool]) -> None:
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
                one.see(last_step(self.store.run(one.cell)), now)
            self.show.update(self.outcome, self.running, waiting, self.expect.left(self.running, waiting))
            time.sleep(LOOK)
        self.outcome.left += waiting

    def _start_some(self, waiting: list[Cell], now: float, deadline: float | None) -> bool:
        """Fill the free places; whether there was anything to wait for that may begin now."""
        began = not waiting
        for cell in list(waiting):
            if len(self.running) >= self.e.jobs:
                return True
            left = None if deadline is None else deadline - now
            if left is not None and not self._fits(cell, left, new=not self.idle):
                continue
            waiting.remove(cell)
            self._start(cell)
            began = True
        return began

    def _fits(self, cell: Cell, left: float, new: bool = True) -> bool:
        """Whether a cell should end in time; one that a whole budget is too short for goes on piece by piece."""
        assert self.minutes is not None
        expected = self.expect.seconds(cell, self.running, new)
        return expected is None or expected <= left or expected > 60 * self.minutes

    def _start(self, cell: Cell) -> None:
        slots = {one.slot for one in self.running}
        slot = min((i for i in range(self.e.jobs) if i not in slots), key=lambda i: i not in self.idle)
        run = self.store.run(cell)
        config = self._here(cell.config, slot)
        log = self.store.log(cell)
        job = Job(
            run=str(run),
            config=plain(config),
            base=self.e.folder,
            dataset=self.e.dataset,
            split=self.e.evaluate,
            moments=self.e.moments(config.train.steps),
            keep=self.e.keep,
            log=str(log),
        )
        log.parent.mkdir(parents=True, exist_ok=True)
        self.store.fail(cell, None)
        with open(log, "ab") as file:
            file.write(f"---- {time.strftime('%Y-%m-%d %H:%M:%S')} {cell.name}: {run}\n".encode())
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
        self.running.append(Running(cell, process, slot, time.monotonic(), start, log, start))
        self.show.say(f"{cell.name}: {f'goes on from step {start}' if start else 'begins'}")

    def _here(self, config: Config, slot: int) -> Config:
        """With the data's folder by its whole path, and a device of several."""
        device = self.e.devices[slot % len(self.e.devices)] if self.e.devices else config.train.device
        return replace(located(self.e, config), train=replace(config.train, device=device))

    def _environment(self) -> dict[str, str]:
        """The cores are shared, unless the user has said how."""
        share = str(max(1, (os.cpu_count() or 1) // self.e.jobs))
        threads = {"OMP_NUM_THREADS": share, "TORCHINDUCTOR_COMPILE_THREADS": share}
        return {**threads, "PYTHONUNBUFFERED": "1", **os.environ}

    # ---- ends ----------------------------------------------------------------------------------

    def _ended(self, one: Running) -> None:
        self.running.remove(one)
        cell = one.cell
        if (code := one.process.poll()) is None:
            self.idle[one.slot] = one.process
        else:
            end(one.process)
        if not code and self.store.state(cell, self.e.evaluate) == "done":
            self.outcome.done.append(cell)
            self.expect.learn(one, time.monotonic())
            last = read_result(self.store.run(cell)).miou(self.e.evaluate, "last")
            self.show.say(f"{cell.name}: done{'' if last is None else f', mIoU {last:.2f}'}")
            return
        why = last_words(one.log)
        if code is not None and code < 0:
            why = f"killed by {signal.Signals(-code).name} (its last words: {why})"
        self.store.fail(cell, why)
        self.outcome.failed[cell.name] = why
        self.show.say(f"{cell.name}: failed: {why}")

    def _stop(self, why: str) -> None:
        """Ask everyone to save and stop, and wait for them."""
        self.outcome.stopped = why
        if self.running:
            self.show.say(f"stopping {len(self.running)} run{'s' * (len(self.running) > 1)}, which save first")
        for one in self.running:
            one.process.send_signal(signal.SIGINT)
        until = time.monotonic() + PATIENCE
        for one in list(self.running):
            end(one.process, max(0.1, until - time.monotonic()))
            self.running.remove(one)
            done = self.store.state(one.cell, self.e.evaluate) == "done"
            (self.outcome.done if done else self.outcome.left).append(one.cell)

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


def located(e: Experiment, config: Config) -> Config:
    """With the folder of the data by its whole path, if it is there."""
    root = config.data.root
    for base in (Path(e.folder), Path()):
        if root and (base / root).is_dir():
            root = str((base / root).absolute())
    return replace(config, data=replace(config.data, root=root))
