"""What is on disk: OUT/runs/NAME (a run folder with result.json), OUT/logs/NAME.log, OUT/failed/NAME.txt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..engine.load import load_config
from ..errors import LogicDiagError, RunError
from ..files import written_whole
from .grid import Cell, key_of

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

RESULT = "result.json"
OF_VAL = "val"
"""What the run's own data.val is called among the splits of a result."""
TAIL = 4096
"""Bytes at the end of a file that are looked at for its last line."""


@dataclass
class Result:
    """What a run has come to: small, and all that a table needs."""

    dataset: str = ""
    trained: bool = False
    seconds: float = 0.0
    """Of training and evaluation, over all pieces that were not killed."""
    device: str = ""
    labels: int | None = None
    """Labelled images that there were."""
    val: dict[str, Any] = field(default_factory=dict)
    """On data.val, during training: `last`, `best`, `best_step`, and the list's `fingerprint`."""
    evaluated: dict[str, Any] = field(default_factory=dict)
    """Split -> `last` and `best`: evaluations as in evaluation-SPLIT.json."""

    def is_done(self, split: str | None) -> bool:
        return self.trained and split_name(split) in self.evaluated

    def miou(self, split: str | None, which: str) -> float | None:
        """At the leaves, in per cent; the best network is the last where none was chosen."""
        found = self.evaluated.get(split_name(split), {})
        miou = found.get(which, found.get("last", {})).get("miou")
        return None if miou is None else 100 * miou


def split_name(split: str | None) -> str:
    return OF_VAL if split is None else split


def read_result(run: Path) -> Result:
    """The result of a run folder; an empty one where there is none yet."""
    file = run / RESULT
    if not file.is_file():
        return Result()
    try:
        return Result(**json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{file} cannot be read as the result of a run: {error}") from None


def write_result(run: Path, result: Result) -> None:
    with written_whole([run / RESULT]) as [part]:
        part.write_text(json.dumps(vars(result), indent=2, ensure_ascii=False) + "\n", "utf-8")


class Store:
    """The folder of an experiment's runs."""

    def __init__(self, out: Path) -> None:
        self.out, self.runs = out, out / "runs"

    def run(self, cell: Cell) -> Path:
        """The cell's run folder: the one that is there, or the one that it will have.

        A run keeps its settings whole. If a setting was added to logicdiag since, it is recognised by them and not by
        its name.
        """
        path = self.runs / cell.run_name
        return path if path.is_dir() else self._others.get(cell.key, path)

    @cached_property
    def _others(self) -> dict[str, Path]:
        """Key -> the run, where the folder is not named so."""
        found: dict[str, Path] = {}
        for file in sorted(self.runs.glob(f"*/{RESULT}")):
            try:
                config = load_config(file.parent / "config.yaml")
            except LogicDiagError:  # of a version that had other settings
                continue
            key = key_of(config, read_result(file.parent).dataset)
            if not file.parent.name.endswith(key):
                found[key] = file.parent
        return found

    def log(self, cell: Cell) -> Path:
        return self.out / "logs" / f"{cell.run_name}.log"

    def failure(self, cell: Cell) -> str | None:
        """Why the cell failed when it was last tried."""
        file = self._failed(cell)
        return file.read_text("utf-8").strip() if file.is_file() else None

    def fail(self, cell: Cell, why: str | None) -> None:
        """Remember why a cell failed; None: it did not."""
        file = self._failed(cell)
        if why is None:
            file.unlink(missing_ok=True)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(why + "\n", "utf-8")

    def _failed(self, cell: Cell) -> Path:
        return self.out / "failed" / f"{cell.run_name}.txt"

    def state(self, cell: Cell, split: str | None) -> str:
        """done, failed, begun or to do."""
        path = self.run(cell)
        if read_result(path).is_done(split):
            return "done"
        if self.failure(cell) is not None:
            return "failed"
        return "begun" if (path / "config.yaml").is_file() else "to do"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Two runners must not work in one folder, nor one in the folder of a run."""
        if (self.out / "config.yaml").is_file():
            raise RunError(
                f"{self.out} holds a run of `logicdiag train`; give the experiment another folder with out=..."
            )
        self.out.mkdir(parents=True, exist_ok=True)
        with open(self.out / "lock", "a", encoding="utf-8") as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise RunError(
                        f"{self.out} is in use: another `logicdiag experiment` works there; wait for it, or give this "
                        "one another folder with out=..."
                    ) from None
            yield


def last_step(run: Path) -> int:
    """The step of the last whole line of metrics.jsonl; 0: none yet."""
    for line in reversed(_tail(run / "metrics.jsonl")):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):  # cut at its begin, or being written
            continue
    return 0


def last_words(log: Path) -> str:
    """The last line of a log that says something."""
    lines = [line.strip() for line in _tail(log) if line.strip()]
    return lines[-1].removeprefix("logicdiag: ") if lines else "it ended without a word"


def _tail(file: Path) -> list[str]:
    try:
        with open(file, "rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - TAIL))
            return stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
