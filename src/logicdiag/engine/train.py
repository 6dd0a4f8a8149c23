"""Training: from a configuration to a run folder, interruptible at every step and resumed exactly where it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..data.open import open_dataset
from ..errors import ConfigError, LogicDiagError, RunError
from .check import check, refuse_other_data
from .config import Config
from .distributed import world
from .likeness import told_by_labels
from .run import (
    MAY_MOVE,
    Run,
    create_run,
    cut_metrics,
    in_use,
    load_checkpoint,
    open_run,
    other_settings,
    refuse_used,
    remove_parts,
)
from .trainer import Trainer


def train(
    config: Config,
    out: str | Path,
    base: str | Path | None = None,
    observe: Callable[[Trainer], None] | None = None,
) -> Run:
    """Train into a new run folder. Relative paths of the configuration start at `base`, its own folder.

    `observe` is shown the trainer after every step.
    """
    base = Path(base or ".")
    with world(config.train.device) as here:
        dataset = open_dataset(config.data, base)
        check(config, dataset, here.size)  # before anything that takes long
        if here.size == 1:
            refuse_used(Path(out))
        dataset, witness = told_by_labels(config, dataset, base, Path(out), here)
        trainer = Trainer(config, dataset, here, Path(out), base)
        failed: LogicDiagError | None = None
        if here.is_first:
            try:
                create_run(Path(out), config, base, dataset, trainer.facts(), witness)
            except LogicDiagError as error:
                failed = error  # the other processes wait for this one: meet them first
        if here.any(failed is not None):
            raise failed or RunError("the first process could not begin the run, and says why")
        with in_use(Path(out), here.is_first):
            trainer.run(observe)
    return open_run(out)


def resume(path: str | Path, changes: Sequence[str] = (), observe: Callable[[Trainer], None] | None = None) -> Run:
    """Go on with a run that was interrupted, to its end; its weights come out as if it had never stopped.

    A run without a checkpoint had not come that far, and begins again. `changes` may say where data and devices are
    now; `observe` is as for `train`.
    """
    for change in other_settings(changes):
        raise ConfigError(f"--resume goes on with a run as it was; {change} cannot change, only {', '.join(MAY_MOVE)}")
    run = open_run(path, tuple(changes))
    with world(run.config.train.device) as here:
        state = load_checkpoint(run.path, here.device)
        config, dataset = run.config, run.dataset()
        refuse_other_data(run, dataset)
        if state is not None:  # the weights to start from need not be there any more
            config = replace(config, model=replace(config.model, weights=None))
        trainer = Trainer(config, dataset, here, run.path, run.base, run.knowledge)
        if state is not None:
            trainer.load(state)
        with in_use(run.path, here.is_first):
            if here.is_first:
                cut_metrics(run.path, trainer.done)
                remove_parts(run.path)
            here.wait()
            trainer.run(observe)
    return run
