"""Runs that take a second: a few small scenes, a small network, one thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image

from logicdiag.engine import trainer as training
from logicdiag.engine.config import Config
from logicdiag.engine.load import build

SMALL: dict[str, Any] = {
    "data": {
        "layout": "scenes",
        "crop": 32,
        "workers": 0,
        "scenes": {"size": 40, "train": 9, "labeled": 4, "val": 2},
    },
    "model": {"encoder": "small", "decoder_channels": 8, "head_bias": 0.0},
    "method": {"weight": 5.0, "ramp": [0.0, 0.0]},
    "psi": {"weight": "one", "levels": 0.0},
    "loss": {"balance": 0.0},
    "optimizer": {"name": "sgd", "lr": 0.0025},
    "train": {"steps": 6, "labeled_batch": 2, "unlabeled_batch": 2, "log_every": 2, "val_every": 3, "device": "cpu"},
}


def settings(**changes: Any) -> dict[str, Any]:
    """SMALL with parts changed: settings(train={"steps": 3})."""
    out = {part: dict(keys) for part, keys in SMALL.items()}
    for part, keys in changes.items():
        out[part] = {**out.get(part, {}), **keys}
    return out


def config(**changes: Any) -> Config:
    return build(Config, settings(**changes))


def config_file(folder: Path, **changes: Any) -> Path:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(settings(**changes)), "utf-8")
    return path


def started(*arguments: object, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """`python -m logicdiag`, in a process of its own, on one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(env or {})}
    return subprocess.Popen(
        [sys.executable, "-m", "logicdiag", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,  # a signal to all of its processes reaches no other
    )


def stop_after(monkeypatch: Any, step: int) -> None:
    """Ctrl-C during a step, counted from 1, of the next run."""
    inner = training.Trainer._step
    left = [step]

    def interrupted(self: Any, batches: Any) -> None:
        inner(self, batches)
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(training.Trainer, "_step", interrupted)


def same(one: Any, other: Any, where: str = "") -> None:
    """Equal bit for bit, whatever is nested in them."""
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{where}.{index}")
    else:
        assert one == other, where


def folder_dataset(root: Path, labeled: int = 3, unlabeled: int = 4, val: int = 2, size: int = 40) -> Path:
    """A data set on disk; every image has a mask, also those that are trained on without."""
    for name in ("images", "masks", "splits"):
        (root / name).mkdir(parents=True)
    (root / "dataset.yaml").write_text("classes: [cat, bird, sky]\nhierarchy: {animal: [cat, bird], sky: }\n")
    rng = np.random.default_rng(0)
    splits: dict[str, list[str]] = {"labeled": [], "train": [], "val": []}
    for number in range(labeled + unlabeled + val):
        name = f"i{number}"
        mask = rng.integers(0, 3, (size, size), dtype=np.uint8)
        Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(root / "images" / f"{name}.png")
        Image.fromarray(mask).save(root / "masks" / f"{name}.png")
        if number < labeled:
            splits["labeled"].append(name)
        splits["train" if number < labeled + unlabeled else "val"].append(name)
    for name, names in splits.items():
        (root / "splits" / f"{name}.txt").write_text("\n".join(names) + "\n")
    return root


def on_disk(root: Path) -> dict[str, Any]:
    """The `data` part for `folder_dataset`."""
    return {"layout": "folder", "root": str(root), "labeled": "labeled", "unlabeled": "rest", "val": "val"}
