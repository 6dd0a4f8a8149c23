"""The result of an evaluation: as data, as JSON and as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ..data.dataset import ListRecord
from ..logic.hierarchy import Hierarchy
from .metrics import Severity


@dataclass(frozen=True)
class Level:
    """IoU at one level of the hierarchy, 1 at the top; NaN: the class neither occurs nor was it ever predicted."""

    level: int
    miou: float
    classes: dict[str, float]


@dataclass(frozen=True)
class Broken:
    """The share of pixels whose outputs break the rules before repair: some rule, and by family or user rule."""

    share: float
    rules: dict[str, float]


@dataclass(frozen=True)
class Evaluation:
    """What one model does on one list of images; all of it from one confusion matrix over all their pixels."""

    hierarchy: Hierarchy = field(repr=False)
    levels: tuple[Level, ...]
    accuracy: float
    severity: Severity
    violations: Broken | None
    """None for a flat head, which has no outputs above the leaves."""
    images: int
    pixels: int
    """Those that are not ignored; the others count nowhere."""
    confusion: Tensor = field(repr=False)
    """Truth x prediction among the leaves."""
    checkpoint: str | None = None
    split: str | None = None
    list: ListRecord | None = None
    labeled: ListRecord | None = None
    """The labelled images that the model was trained on."""

    @property
    def miou(self) -> float:
        """At the leaves."""
        return self.levels[-1].miou

    @property
    def miou_parents(self) -> float:
        """The mean over the leaves, each with the IoU of the concept right above it (a topmost leaf: its own).

        So the leaves would have it, roughly, if siblings were never confused.
        """
        leaves = [leaf for leaf, iou in self.levels[-1].classes.items() if not math.isnan(iou)]
        parents = [self.hierarchy.parent(leaf) or leaf for leaf in leaves]
        depths = [self.hierarchy.depths[self.hierarchy.names.index(name)] for name in parents]
        found = [self.levels[depth - 1].classes[name] for depth, name in zip(depths, parents, strict=True)]
        return sum(found) / len(found) if found else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON. NaN, a class that neither occurs nor was predicted, is None; shares are from 0 to 1.

        `miou` is that of the leaves, and `miou_parents` roughly that if siblings were never confused; `levels` goes
        from the top to the leaves, each with `level`, `miou` and `classes` (name -> IoU); `severity` has the `mean`
        height of the common ancestor over the wrong pixels and their `shares` by height; `violations` has the `share`
        of pixels and `rules`, by family or user rule; `list` says which images these were: `source`, `count`,
        `fingerprint`, and the name of the published list in `known`; `labeled` likewise which ones the model was
        trained on.
        """
        plain: dict[str, Any] = _plain(
            {
                "checkpoint": self.checkpoint,
                "split": self.split,
                "list": asdict(self.list) if self.list else None,
                "labeled": asdict(self.labeled) if self.labeled else None,
                "hierarchy": self.hierarchy.title,
                "images": self.images,
                "pixels": self.pixels,
                "miou": self.miou,
                "miou_parents": self.miou_parents,
                "levels": [asdict(level) for level in self.levels],
                "accuracy": self.accuracy,
                "severity": asdict(self.severity),
                "violations": asdict(self.violations) if self.violations else None,
            }
        )
        return plain

    def render(self) -> Group:
        return render([self])


def render(evaluations: Sequence[Evaluation]) -> Group:
    """Evaluations on the same images, side by side: mIoU per level and the rest, then the IoU of every class."""
    first = evaluations[0]
    h = first.hierarchy
    heads = [e.checkpoint or "model" for e in evaluations]
    where = f" of {first.split}" if first.split else ""
    known = f" ({first.list.known})" if first.list and first.list.known else ""
    title = Text(f"{first.images} images{where}{known}{_trained(first.labeled)}")
    summary = _table("", "in %", heads)
    for number, names in enumerate(h.levels, 1):
        label = "leaves" if number == h.height else f"level {number}"
        seen = sum(not math.isnan(value) for value in first.levels[number - 1].classes.values())
        of = f"{seen} of {len(names)}" if seen < len(names) else str(len(names))
        summary.add_row(f"mIoU, {label} ({of} classes)", *(_percent(e.levels[number - 1].miou) for e in evaluations))
    summary.add_row("pixel accuracy", *(_percent(e.accuracy) for e in evaluations))
    summary.add_row(
        f"mistake severity (no %, 1 to {h.height})",
        *("–" if math.isnan(e.severity.mean) else f"{e.severity.mean:.2f}" for e in evaluations),
    )
    if first.violations:
        summary.add_row("violations", *(_percent(e.violations.share) if e.violations else "–" for e in evaluations))
        for rule in first.violations.rules:
            shares = (_percent(e.violations.rules[rule]) if e.violations else "–" for e in evaluations)
            summary.add_row(f"  of {escape(rule)}", *shares)
    classes = _table("IoU of every class", "in %", heads)
    for index, name in enumerate(h.names):  # a class has one IoU: deeper levels repeat a shallow leaf's
        depth = h.depths[index]
        values = (_percent(e.levels[depth - 1].classes[name]) for e in evaluations)
        classes.add_row("  " * (depth - 1) + escape(name), *values)
    return Group(title, summary, classes)


def _trained(labeled: ListRecord | None) -> str:
    """On which labels, by the name of a published list, or by the first digits of the fingerprint."""
    if labeled is None:
        return ""
    which = labeled.known or f"list {labeled.fingerprint[:8]}"
    return f"; trained on {labeled.count} masks ({which})"


def _table(title: str, first: str, heads: Sequence[str]) -> Table:
    table = Table(first, title=title or None, title_justify="left")
    for head in heads:
        table.add_column(escape(head), justify="right")
    return table


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.2f}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value
