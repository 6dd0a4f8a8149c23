"""A run folder: everything that `resume`, `evaluate` and `predict` need, in files that are written whole or not at all.

config.yaml, hierarchy.yaml, rules.txt   what was asked for
witness.csv                              what the labelled images said of the others, with `data.witness: labels`
record.json                              versions, seed, device, and the fingerprints of the lists
metrics.jsonl, tensorboard/              what happened
checkpoint.pt                            all that going on needs
last.safetensors, best.safetensors       the network to use: of the last step, and of the best on `data.val`
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ..data.config import DataConfig
from ..data.dataset import Dataset, mask_ids
from ..data.witness import LABELS
from ..errors import RunError, hint
from ..files import written_whole
from ..logic.hierarchy import Hierarchy
from ..logic.knowledge import KnowledgeBase
from ..models.segmenter import Segmenter, build_model
from ..pseudo.build import build_knowledge, rules_file
from .config import Config
from .load import dump_config, load_config

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

VERSIONED = ("logicdiag", "torch", "timm", "numpy", "numba", "safetensors", "pillow")
RULES = "rules.txt"
WITNESS = "witness.csv"
"""What the labelled images said of the others, where `data.witness` is `labels` and they said anything."""


MAY_MOVE = (
    *(f"data.{key}" for key in ("root", "labeled", "unlabeled", "val", "witness", "workers", "cache")),
    *(f"train.{key}" for key in ("device", "compile", "capture")),
)
"""Settings that may be others than a run was begun with: where things are, and not what is learned; lists are
compared.
"""


def other_settings(changes: Iterable[str]) -> list[str]:
    """Changes of a run's configuration with which it is not that run any more.

    >>> other_settings(["data.root=/elsewhere", "model.decision=leaf"])
    ['model.decision=leaf']
    """
    return [change for change in changes if change.partition("=")[0] not in MAY_MOVE]


@dataclass(frozen=True)
class Run:
    path: Path
    config: Config
    hierarchy: Hierarchy
    record: dict[str, Any]

    @property
    def base(self) -> Path:
        """Where relative paths of the configuration start."""
        return Path(self.record["base"])

    @property
    def knowledge(self) -> KnowledgeBase:
        psi = self.config.psi
        if isinstance(psi.rules, str):
            psi = replace(psi, rules=str((self.path / RULES).absolute()))
        return build_knowledge(psi, self.hierarchy)

    @property
    def data(self) -> DataConfig:
        """With the witness that was heard when the run was begun."""
        data = self.config.data
        if data.witness != LABELS:
            return data
        heard = (self.path / WITNESS).absolute()
        return replace(data, witness=str(heard) if heard.is_file() else None)

    def dataset(self) -> Dataset:
        from ..data.open import open_dataset

        return open_dataset(self.data, self.base)

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids that the data set's own masks have for the leaves; counted from 0 where that does not fit a byte."""
        ids = self.record.get("ids") or {}
        leaves = self.hierarchy.leaves
        return tuple(int(ids.get(leaf, index)) for index, leaf in enumerate(leaves))

    def model(self, which: str = "last", device: torch.device | str = "cpu") -> Segmenter:
        """The network of the last step, or of the best on `data.val`, ready for inference."""
        file = self.path / f"{which}.safetensors"
        if not file.is_file():
            found = [p.stem for p in sorted(self.path.glob("*.safetensors"))]
            raise RunError(f"{file} is not there; the run has {', '.join(found) or 'no network yet'}")
        model = build_model(replace(self.config.model, weights=None), self.hierarchy)
        try:
            model.load_state_dict(load_file(file))
        except (SafetensorError, RuntimeError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise RunError(f"{file} does not hold the network that config.yaml describes: {reason}") from None
        return model.to(device).eval()


def open_run(path: str | Path, overrides: tuple[str, ...] = ()) -> Run:
    """An existing run; `overrides` change its configuration, such as `data.root=...` when the data moved."""
    path = Path(path)
    if not (path / "config.yaml").is_file():
        near = ""
        if path.parent.is_dir():
            near = hint(path.name, [p.parent.name for p in path.parent.glob("*/config.yaml")])
        raise RunError(f"{path} is no run folder: it has no config.yaml{near}")
    try:
        record = json.loads((path / "record.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is not a whole run folder: record.json cannot be read: {error}") from None
    if not isinstance(record, dict) or "base" not in record or not isinstance(record.get("lists", {}), dict):
        raise RunError(f"{path} is not a whole run folder: record.json is not one of logicdiag's")
    hierarchy = Hierarchy.load(path / "hierarchy.yaml")
    return Run(path, load_config(path / "config.yaml", overrides), hierarchy, record)


def create_run(
    path: Path, config: Config, base: Path, dataset: Dataset, facts: dict[str, Any], witness: str | None = None
) -> Run:
    """A new run folder. One that already holds a run is not overwritten. `witness` is the text of its table."""
    refuse_used(path)
    record = {
        "logicdiag": 1,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions(),
        "base": str(base.absolute()),
        "seed": config.train.seed,
        "data": dataset.name,
        "ids": mask_ids(dataset),
        "lists": {name: asdict(record) for name, record in dataset.lists.items()},
        **facts,
    }
    files = {
        "record.json": json.dumps(record, indent=2, ensure_ascii=False) + "\n",
        "hierarchy.yaml": dataset.hierarchy.to_yaml(),
        "config.yaml": dump_config(config),
    }
    if witness is not None:
        files[WITNESS] = witness
    rules = rules_file(config.psi, base)
    if rules is not None:
        files[RULES] = rules.read_text("utf-8")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with written_whole([path / name for name in files]) as parts:
            for part, text in zip(parts, files.values(), strict=True):
                part.write_text(text, "utf-8")
    except OSError as error:
        raise RunError(f"{path}: the run folder cannot be written: {error.strerror}") from None
    return Run(path, config, dataset.hierarchy, record)


def refuse_used(path: Path) -> None:
    """A folder that holds anything is not taken for a new run."""
    if (path / "config.yaml").exists():
        raise RunError(f"{path} already holds a run; go on with --resume {path}, or name another folder with --out")
    if path.exists() and not path.is_dir():
        raise RunError(f"{path} is a file, expected a folder for the run, or nothing there")
    if path.is_dir() and any(path.iterdir()):
        raise RunError(f"{path} holds other files; name a new folder with --out")


def note(path: Path, facts: dict[str, Any]) -> None:
    """Add what only training itself could find out to the record."""
    record = json.loads((path / "record.json").read_text("utf-8")) | facts
    with written_whole([path / "record.json"]) as [part]:
        part.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", "utf-8")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for name in VERSIONED:
        try:
            found[name] = sys.modules[name].__version__ if name == "torch" else metadata.version(name)
        except (metadata.PackageNotFoundError, KeyError):
            continue
    return found


@contextmanager
def in_use(path: Path, first: bool = True) -> Iterator[None]:
    """Two trainings must not write into one run; the first process of each holds its lock."""
    if not first or fcntl is None:
        yield
        return
    with open(path / "config.yaml", "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{path} is in use: another process is training into it") from None
        yield


def remove_parts(path: Path) -> None:
    """What a process that was killed had half written."""
    for part in path.glob(".*.part"):
        part.unlink(missing_ok=True)


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def save_checkpoint(path: Path, state: dict[str, Any], model: Segmenter, best: bool) -> None:
    """Everything that going on needs, and the network to use; each file whole, or the old one stays."""
    names = ["last.safetensors", *(["best.safetensors"] if best else []), "checkpoint.pt"]
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    try:
        with written_whole([path / name for name in names]) as parts:
            for part in parts[:-1]:
                save_file(weights, part)
            torch.save(state, parts[-1])
    except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors have their own for a full disk
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        before = ", the one before is still there" if (path / "checkpoint.pt").exists() else ""
        raise RunError(f"{path}: the checkpoint cannot be written{before}: {reason}") from None


def load_checkpoint(path: Path, device: torch.device | str) -> dict[str, Any] | None:
    """The state of `checkpoint.pt`, if there is one yet; what it holds is never executed."""
    file = path / "checkpoint.pt"
    if not file.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
    except Exception as error:
        raise RunError(f"{file} cannot be read as a checkpoint: {str(error).splitlines()[0]}") from None
    return state


# ---- metrics ---------------------------------------------------------------------------------------------------------


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    file = path / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def cut_metrics(path: Path, step: int) -> None:
    """Forget what came after a step, before going on from there."""
    file = path / "metrics.jsonl"
    if file.exists():
        kept = []
        for line in file.read_text("utf-8", errors="replace").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except (ValueError, KeyError, TypeError):  # a line that was being written when the machine went down
                continue
        with written_whole([file]) as [part]:
            part.write_text("".join(kept), "utf-8")
