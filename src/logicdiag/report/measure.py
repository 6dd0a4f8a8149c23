"""What a report says in numbers of a run's networks on its validation images; kept in RUN/report.json."""

from __future__ import annotations

import filecmp
import json
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.dataset import Masked, evenly
from ..data.open import SCENES, record
from ..engine.evaluate import evaluate_model
from ..engine.inference import where_to_run
from ..engine.load import plain
from ..engine.metrics import IGNORED
from ..engine.run import Run, read_metrics
from ..errors import RunError
from ..experiment.worker import SNAPSHOTS, snapshots
from ..files import Progress, written_whole
from ..logic.knowledge import KnowledgeBase
from .calibration import Reliability
from .look import Viewer, validation

CACHE = "report.json"
SAMPLE = 10
"""Images that snapshots are measured on, enough for how conflicts change; the best and the last network take all."""
FORMAT = 1
"""Changes when what is measured changes."""


@dataclass(frozen=True)
class Moment:
    """A network of a run, and the step it is of."""

    step: int
    which: str


@dataclass(frozen=True)
class Measured:
    """What was found out about one network."""

    moment: Moment
    evaluation: dict[str, Any]
    """As `Evaluation.to_dict`."""
    confusion: Tensor
    conflict: dict[str, dict[str, float | None]]
    """By "any" and rule family or user rule, then by true class: the share of its pixels that break it."""
    broken: dict[str, int]
    """Pixels that break each single rule, in words."""
    posterior: Reliability
    """Of the diagnosis taken, over the pixels in conflict."""
    confidence: Reliability
    """Of the likeliest leaf, over all pixels."""
    images: dict[str, dict[str, float | None]]
    """By name: the share of right pixels, and of those in conflict."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "step": self.moment.step,
            "which": self.moment.which,
            "evaluation": self.evaluation,
            "confusion": self.confusion.tolist(),
            "conflict": self.conflict,
            "broken": self.broken,
            "posterior": self.posterior.to_list(),
            "confidence": self.confidence.to_list(),
            "images": self.images,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Measured:
        return cls(
            Moment(int(data["step"]), str(data["which"])),
            data["evaluation"],
            torch.tensor(data["confusion"]),
            data["conflict"],
            data["broken"],
            Reliability.from_list(data["posterior"]),
            Reliability.from_list(data["confidence"]),
            data["images"],
        )


def moments(run: Run) -> list[Moment]:
    """Snapshots in their order, then the best network and the last."""
    last = _last_step(run)
    found = [Moment(step, f"{SNAPSHOTS}/{file.stem}") for step, file in snapshots(run.path).items() if step != last]
    best = run.path / "best.safetensors"
    if best.is_file():
        found.append(Moment(_best_step(run), "best"))
    return [*found, Moment(last, "last")]


def measure(
    run: Run,
    images: int | None = None,
    device: torch.device | str | None = None,
    again: bool = False,
    progress: Progress | None = None,
) -> list[Measured]:
    """All networks of a run on its validation images, or on `images` of them, evenly taken; the last one last.

    Snapshots are measured on `SAMPLE` of these.
    Networks that were measured on these images are not measured again, unless `again`. Empty where the run has no
    validation images.
    """
    items = evenly(validation(run), images)
    if not items:
        return []
    wanted = moments(run)
    taken = {m.which: items if m.which in ("best", "last") else evenly(items, SAMPLE) for m in wanted}
    keys = {moment.which: _key(run, moment, taken[moment.which], device) for moment in wanted}
    known = {} if again else _read(run.path)
    found = {}
    networks = [moment for moment in wanted if moment.which != "best" or not _best_is_last(run)]
    total, before = sum(len(taken[moment.which]) for moment in networks), 0
    for moment in networks:
        mine = taken[moment.which]
        start, before = before, before + len(mine)
        stored = known.get(moment.which, {})
        if stored.get("key") == keys[moment.which]:
            found[moment.which] = Measured.from_dict(stored)
            continue
        told = None
        if progress:
            told = lambda _, done, of, start=start: progress("validation images", start + done, total)  # noqa: E731
        found[moment.which] = _Meter(Viewer(run, moment.which, device), moment).measure(mine, told)
    _write(run.path, {which: {"key": keys[which], **one.to_dict()} for which, one in found.items()})
    return [found[m.which] if m.which in found else replace(found["last"], moment=m) for m in wanted]


class _Meter:
    def __init__(self, viewer: Viewer, moment: Moment) -> None:
        self.viewer, self.moment, self.h = viewer, moment, viewer.run.hierarchy
        self.posterior, self.confidence = Reliability(), Reliability()
        self.images: dict[str, dict[str, float | None]] = {}
        self.broken: Counter[str] = Counter()
        kb = viewer.run.knowledge
        self.parts: dict[str, KnowledgeBase] = {}
        if viewer.diagnoser is not None:
            self.parts = {family: KnowledgeBase(self.h, family, root=kb.root) for family in kb.families}
            self.parts |= {rule.name: KnowledgeBase(self.h, "", [rule]) for rule in kb.pixel_rules}
        self.kb = kb
        self.counts = torch.zeros(2 + len(self.parts), len(self.h.leaves), dtype=torch.int64)
        """By true class: pixels, those in conflict, and those that break each part."""

    def measure(self, items: Sequence[Masked], progress: Progress | None) -> Measured:
        """While the network goes on with the next images, one thread counts, in order."""
        v = self.viewer
        waiting: deque[Future[None]] = deque()
        with _shared_cores(v.device), ThreadPoolExecutor(1) as beside:

            def observe(*predicted: Any) -> None:
                waiting.append(beside.submit(self._add, *predicted))
                if len(waiting) > 2:
                    waiting.popleft().result()

            found = evaluate_model(
                v.model, items, self.h, self.kb, v.inference, v.device, v.precision, progress, observe=observe
            )
            for late in waiting:
                late.result()
        pixels, *rest = self.counts
        shares = {
            part: {leaf: _share(k, n) for leaf, k, n in zip(self.h.leaves, row.tolist(), pixels.tolist(), strict=True)}
            for part, row in zip(("any", *self.parts), rest, strict=True)
        }
        return Measured(
            self.moment,
            found.to_dict(),
            found.confusion,
            shares if v.diagnoser is not None else {},
            dict(self.broken.most_common()),
            self.posterior,
            self.confidence,
            self.images,
        )

    @torch.no_grad()
    def _add(self, names: Sequence[str], truth: Tensor, logits: Tensor) -> None:
        for i, name in enumerate(names):
            self._add_one(name, truth[i].long(), logits[i : i + 1])

    def _add_one(self, name: str, truth: Tensor, logits: Tensor) -> None:
        model = self.viewer.model
        known = truth != IGNORED
        leaf = truth[known]
        probs = model.probs(logits)
        chosen = model.leaf_logits(logits).max(1).indices  # on a CPU ten times as fast as argmax
        sure = model.leaf_probs(logits).gather(1, chosen[:, None])[0, 0]
        right = chosen[0][known] == leaf
        self.confidence.add(sure[known], right)
        facts: dict[str, float | None] = {"right": _share(int(right.sum()), leaf.numel())}
        if self.viewer.diagnoser is not None:
            result = self.viewer.diagnose(probs)
            conflict = result.conflict[0] & known
            self.posterior.add(result.log_prob[0][conflict].exp(), result.leaf[0][conflict] == truth[conflict])
            facts["conflict"] = _share(int(conflict.sum()), leaf.numel())
            self._count(leaf, result.observed[0].movedim(0, -1), known, conflict)
        self.images[name] = facts

    def _count(self, leaf: Tensor, observed: Tensor, known: Tensor, conflict: Tensor) -> None:
        wrong = observed[conflict]  # the others break nothing
        self.broken.update(self.kb.count_broken(wrong))
        where = conflict[known]
        rows = [torch.ones_like(where), where]
        for part in self.parts.values():
            row = torch.zeros_like(where)
            row[where] = ~part.is_consistent(wrong)
            rows.append(row)
        bins = [torch.bincount(leaf[row], minlength=len(self.h.leaves)) for row in rows]
        self.counts += torch.stack(bins).cpu()


@contextmanager
def _shared_cores(device: torch.device) -> Iterator[None]:
    """Two threads that work at once get half of the cores each."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(max(1, before // 2))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _last_step(run: Run) -> int:
    return max((int(line["step"]) for line in read_metrics(run.path)), default=run.config.train.steps)


def _best_step(run: Run) -> int:
    lines = [(line["val/miou"], -int(line["step"])) for line in read_metrics(run.path) if line.get("val/miou")]
    return -max(lines)[1] if lines else run.config.train.steps


def _best_is_last(run: Run) -> bool:
    """Whether both files hold one network."""
    best, last = run.path / "best.safetensors", run.path / "last.safetensors"
    return last.is_file() and filecmp.cmp(best, last, shallow=False)


# ---- what was measured before ----------------------------------------------------------------------------------------


def _key(run: Run, moment: Moment, items: Sequence[Masked], device: torch.device | str | None) -> list[Any]:
    """What a measurement depends on; a network is known by its file's size and time."""
    file = run.path / f"{moment.which}.safetensors"
    facts = file.stat() if file.is_file() else None
    c = run.config
    rules = [c.psi.strategy, c.psi.q, c.psi.connectives, c.psi.quantifier, c.psi.budget]
    knowledge = [run.knowledge.families, run.knowledge.root, [str(rule) for rule in run.knowledge.rules]]
    data = [c.data.layout, c.data.root, c.data.val, plain(c.data.scenes) if c.data.layout == SCENES else None]
    way = [where_to_run(device, None, c.train.precision)[1], plain(c.inference), c.model.decision]
    state = [facts.st_size, facts.st_mtime_ns] if facts else []
    return [FORMAT, moment.step, record("", items).order, len(items), state, data, way, rules, knowledge]


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        stored = json.loads((path / CACHE).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return stored if isinstance(stored, dict) else {}


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        with written_whole([path / CACHE]) as [part]:
            part.write_text(json.dumps(content, ensure_ascii=False) + "\n", "utf-8")
    except OSError as error:
        raise RunError(f"{path / CACHE}: cannot be written: {error.strerror}") from None
