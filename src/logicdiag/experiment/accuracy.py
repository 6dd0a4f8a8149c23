"""How good the pseudo labels of a run were: its snapshots on the unlabelled images, against their hidden masks.

This is the only module that opens these masks, and only after training.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor

from ..data.dataset import IGNORE, Masked, Split, evenly
from ..data.open import open_hidden
from ..data.witness import rows_of
from ..engine.evaluate import read_ahead, together
from ..engine.inference import predict_logits, where_to_run
from ..engine.run import Run, open_run
from ..errors import ConfigError, DataError, RunError
from ..files import Progress, written_whole
from ..logic.leaves import Leaves
from ..methods.build import METHODS
from ..models.segmenter import Segmenter
from ..plan import moved
from ..pseudo.build import PsiSetting, build_psi
from ..pseudo.target import Prediction, Psi, Target
from ..pseudo.threshold import Threshold
from .tally import NONE, Tally
from .worker import SNAPSHOTS, snapshots

PSEUDO = "pseudo.json"

Loaded = tuple[int, NDArray[np.uint8], NDArray[np.uint8]]


def measure_run(
    run_path: str | Path,
    overrides: tuple[str, ...] = (),
    images: int | None = None,
    device: torch.device | str | None = None,
    again: bool = False,
    progress: Progress | None = None,
    forget: bool = False,
) -> dict[str, Any]:
    """Measure every snapshot of a run, or its last network where it kept none, and write RUN/pseudo.json.

    Images are whole and not changed, and predicted as in evaluation. Psi is that of the run; its truth degrees are of
    the images that are predicted together. `images`: only so many, evenly taken. What was measured is not measured
    again, unless `again`; `forget` removes the snapshots afterwards.
    """
    if images is not None and images < 1:
        raise ConfigError(f"--images is {images}, expected a whole number of at least 1")
    path = Path(run_path)
    known = read_pseudo(path)
    files = {step: f"{SNAPSHOTS}/{file.stem}" for step, file in snapshots(path).items()}
    if known and not again and _covers(known, files, images):
        return known
    run = open_run(path, overrides)
    device, precision = where_to_run(device, None, run.config.train.precision)
    files = files or {run.config.train.steps: "last"}
    hidden = open_hidden(run.data, run.base)
    meters = [_Meter(step, run.model(which, device), run, hidden) for step, which in files.items()]
    if hidden.hierarchy != run.hierarchy:
        raise RunError(f"{path}: the data set has another hierarchy now than the run was trained on")
    if not hidden.items:
        raise DataError(f"{path}: no unlabelled image (data.unlabeled) has a mask, so nothing can be measured")
    items = evenly(hidden.items, images)
    done = 0
    loaded = read_ahead(_load, enumerate(items), max(2, run.config.data.workers))
    for batch in together(loaded, lambda one: one[2].shape):
        numbers = tuple(number for number, _, _ in batch)
        shown = torch.from_numpy(np.stack([image for _, image, _ in batch])).to(device)
        truth = torch.from_numpy(np.stack([mask for _, _, mask in batch])).to(device).long()
        truth = torch.where(truth == IGNORE, NONE, truth)
        heard = None
        if hidden.witness:
            rows = rows_of([items[number] for number in numbers], len(hidden.hierarchy))
            heard = torch.from_numpy(rows).to(device)
        for meter in meters:
            logits = predict_logits(
                meter.model, shown.permute(0, 3, 1, 2).float() / 255, run.config.inference, precision
            )
            meter.add(logits, truth, numbers, heard)
        done += len(batch)
        if progress:
            progress("pseudo labels", done, len(items))
    found = {
        "psi": meters[0].name,
        "head": run.config.model.head,
        "images": len(items),
        "of": len(hidden.items),
        "fingerprint": hidden.record.fingerprint,
        "moments": [{"step": meter.step, **meter.tally.shares()} for meter in meters],
    }
    with written_whole([path / PSEUDO]) as [part]:
        part.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", "utf-8")
    if forget:
        shutil.rmtree(path / SNAPSHOTS, ignore_errors=True)
    return found


def read_pseudo(run: Path) -> dict[str, Any]:
    """What was measured; empty where nothing was."""
    try:
        found = json.loads((run / PSEUDO).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and "moments" in found else {}


def _covers(known: dict[str, Any], files: Iterable[int], images: int | None) -> bool:
    """Whether what was measured is what is asked for."""
    count = known["of"] if images is None else min(images, known["of"])
    return known["images"] == count and {moment["step"] for moment in known["moments"]} >= set(files)


class _Meter:
    """One snapshot, and what is counted of it."""

    def __init__(self, step: int, model: Segmenter, run: Run, hidden: Split) -> None:
        self.step, self.model, self.knowledge = step, model, run.knowledge
        self.psi, self.name = _psi(run, hidden.witness)
        self.paths = Leaves(run.hierarchy).under.T.bool()
        self.tally = Tally(run.hierarchy)

    @torch.no_grad()
    def add(self, logits: Tensor, truth: Tensor, numbers: Sequence[int], heard: Tensor | None = None) -> None:
        before = self.model.leaf_logits(logits).argmax(1)
        target = self._target(logits, numbers, heard)
        labels = conflict = None
        if self.model.head == "hierarchical":
            observed = self.model.probs(logits) > 0.5
            labels = spelled(observed, self.paths)
            conflict = ~self.knowledge.is_consistent(observed.movedim(1, -1))
        if target.labels is not None:
            after = spelled(target.labels > 0.5, self.paths)
        else:
            assert target.leaf is not None
            after = target.leaf.long()
        self.tally.add(truth, before, after, target.weight, labels, conflict)

    def _target(self, logits: Tensor, numbers: Sequence[int], heard: Tensor | None) -> Target:
        """As training would make it of these images; what is drawn depends on the snapshot and the image."""
        valid = torch.ones_like(logits[:, 0], dtype=torch.bool)
        plan = moved(self.psi.plan(self.step, numbers), logits.device)
        return self.psi(Prediction(logits, valid, plan, heard), Prediction(logits[:0], valid[:0]))[0]


def _psi(run: Run, witness: Sequence[str]) -> tuple[Psi, str]:
    """That of the run; of one that makes no pseudo labels, what it would make of a flat head is the likeliest leaf."""
    c = run.config
    if c.model.head == "flat" and not METHODS[c.method.name].needs_unlabeled:
        return Threshold(run.hierarchy, 0.0, c.model.head), "likeliest"
    setting = PsiSetting(c.psi, run.knowledge, c.model.head, c.train.seed, decision=c.model.decision, witness=witness)
    psi = build_psi(setting)
    return psi, c.psi.name


def spelled(labels: Tensor, paths: Tensor) -> Tensor:
    """The leaf whose path the labels (b, concepts, h, w) are, exactly; -1 where they are no such path.

    >>> from logicdiag import Hierarchy
    >>> h = Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
    >>> cat, bird_alone, sky = [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]
    >>> spelled(torch.tensor([cat, bird_alone, sky]).bool().view(3, 4, 1, 1), Leaves(h).under.T.bool()).flatten()
    tensor([ 1, -1,  2])
    """
    out = torch.full_like(labels[:, 0], NONE, dtype=torch.int64)
    for leaf, path in enumerate(paths.to(labels.device)):
        out[(labels == path[:, None, None]).all(1)] = leaf
    return out


# ---- images ----------------------------------------------------------------------------------------------------------


def _load(numbered: tuple[int, Masked]) -> Loaded:
    number, item = numbered
    return number, item.image(), item.mask()


# ---- in words --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Column:
    key: str
    title: str


SHOWN = (
    _Column("before", "right before"),
    _Column("after", "after"),
    _Column("counted", "counted"),
    _Column("learned", "right of counted"),
    _Column("conflict", "conflict"),
    _Column("conflict_before", "in conflict: before"),
    _Column("conflict_after", "after"),
)


def render(found: dict[str, Any]) -> Table:
    """Every snapshot, in per cent; then the classes of the last one."""
    title = f"psi = {found['psi']}, {found['images']} unlabelled images, in % of pixels"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for column in SHOWN:
        table.add_column(column.title, justify="right")
    for moment in found["moments"]:
        table.add_row(f"step {moment['step']}", *_cells(moment))
    table.add_section()
    for name, shares in found["moments"][-1].get("classes", {}).items():
        table.add_row(name, *_cells(shares))
    return table


def told(found: dict[str, Any]) -> str:
    """The last snapshot in a line."""
    last = found["moments"][-1]
    parts = [f"{name} {100 * last[key]:.1f} %" for key, name in TOLD.items() if last.get(key) is not None]
    return f"step {last['step']}: {', '.join(parts)}"


TOLD = {"before": "right before", "after": "after", "conflict": "conflict", "counted": "counted"}


def _cells(shares: dict[str, Any]) -> list[str]:
    values = [shares.get(column.key) for column in SHOWN]
    return ["–" if value is None else f"{100 * value:.1f}" for value in values]
