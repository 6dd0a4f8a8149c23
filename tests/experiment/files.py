"""Experiment files, and results that were never trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from logicdiag.experiment.config import Experiment, load_experiment
from logicdiag.experiment.grid import Cell, expand
from logicdiag.experiment.store import Result, Store, split_name, write_result
from logicdiag.experiment.suite import load_suite
from logicdiag.experiment.task import Task

from ..engine.small import settings


def experiment_file(folder: Path, name: str = "small.yaml", base: dict[str, Any] | None = None, **keys: Any) -> Path:
    """An experiment on small scenes, in `folder`."""
    path = folder / name
    content = {"base": base or settings(), "dataset": "scenes", "out": str(folder / "out"), **keys}
    path.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
    return path


def suite_file(folder: Path, tables: dict[str, dict[str, Any]], **keys: Any) -> Path:
    """A suite of such experiments; runs are in `folder`/DATASET."""
    for name, of_table in tables.items():
        experiment_file(folder, name, **{"out": str(folder / "{dataset}"), **of_table})
    path = folder / "all.yaml"
    path.write_text(yaml.safe_dump({"tables": list(tables), **keys}, sort_keys=False), "utf-8")
    return path


def experiment(folder: Path, *changes: str, **keys: Any) -> tuple[Experiment, list[Cell]]:
    e = load_experiment(experiment_file(folder, **keys), changes)
    return e, expand(e)


def tasks_of(folder: Path, *changes: str, **keys: Any) -> list[Task]:
    return load_suite(experiment_file(folder, **keys), changes).tasks()


def finish(e: Experiment, cell: Cell, last: float, best: float | None = None, **more: Any) -> Path:
    """The run of a cell as if it had been done; mIoU in per cent."""
    run = Store(e.out_folder).run(cell)
    run.mkdir(parents=True, exist_ok=True)

    def found(miou: float) -> dict[str, Any]:
        return {"miou": miou / 100, "images": 7, "list": {"fingerprint": "reported"}}

    result = Result(
        dataset=e.dataset,
        trained=True,
        seconds=90.0,
        labels=cell.labels,
        val={"last": last / 100, "best": (best or last) / 100, "best_step": 3, "fingerprint": "val"},
        evaluated={split_name(e.evaluate): {"last": found(last), "best": found(best or last)}},
    )
    for name, value in more.items():
        setattr(result, name, value)
    write_result(run, result)
    return run
