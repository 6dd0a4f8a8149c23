"""One pixel of an image in words: what the network said, which rule broke, the diagnoses, the one taken and why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..engine.run import Run
from ..errors import OptionError, RunError
from ..logic.explain import Explanation
from ..logic.leaves import DECISIONS
from .look import Look, Viewer

MOST = 1000
"""Diagnoses listed. Under C, D and E there are no more of them than leaves, and one."""
LISTED = 5
"""Concepts named that are not drawn."""
LIKELY = 0.05
"""How likely such a concept must be."""
LEAST = 0.05
"""How likely a diagnosis must be for what it flips to be looked at more closely."""


@dataclass(frozen=True)
class Pixel:
    """Print it for people; `as_dict` for programs."""

    image: str
    at: tuple[int, int]
    """Column and row, from 0 at the upper left."""
    size: tuple[int, int]
    """Width and height of the image."""
    checkpoint: str
    explanation: Explanation
    chosen: tuple[str, float]
    """The likeliest leaf, which inference takes, and its probability."""
    decided: str
    """How likely leaves are is told by this, in words: `model.decision`."""
    threshold: float
    distrust: dict[str, float]
    """c(o) of every concept: how far the rules about it fail over the image; empty where the strategy asks not."""
    seed: int

    @property
    def counts(self) -> bool:
        """Whether a threshold would have taken the pixel."""
        return self.chosen[1] >= self.threshold

    @property
    def why(self) -> str:
        """Why the diagnosis that was taken was taken, in a sentence."""
        e = self.explanation
        if not e.broken:
            return "nothing was to be decided"
        share = f"{e.taken.probability:.1%}"
        alone = "; there was no other" if len(e.diagnoses) == 1 else ""
        if e.strategy in ("greedy", "soft"):
            return f"it is the likeliest, with a probability of {share}{alone}"
        best = e.diagnoses[0]
        other = "" if best.flips == e.taken.flips else f"; the likeliest has {best.probability:.1%}"
        by = {"uniform": "all alike", "predictive": "by predictive confidence alone"}.get(e.strategy, "by likelihood")
        return f"it was drawn {by}, with a probability of {share} (seed {self.seed}){alone or other}"

    def as_dict(self) -> dict[str, Any]:
        leaf, probability = self.chosen
        return {
            "image": self.image,
            "at": list(self.at),
            "size": list(self.size),
            "checkpoint": self.checkpoint,
            "chosen": {"leaf": leaf, "probability": probability},
            "threshold": {"threshold": self.threshold, "counts": self.counts},
            **self.explanation.as_dict(),
            "why": self.why,
            "seed": self.seed,
            "conflict_degrees": self.distrust,
        }

    def __str__(self) -> str:
        e = self.explanation
        (x, y), (width, height), (leaf, probability) = self.at, self.size, self.chosen
        lines = [f"{self.image} ({width} x {height}), pixel {x},{y}, {self.checkpoint} checkpoint", ""]
        lines += str(e).rstrip("\n").splitlines()
        if e.broken:
            lines.append(f"why: {self.why}")
        lines += self._also()
        if self.distrust and e.broken:
            lines += ["how far the rules about them fail over the image (0: they hold everywhere):"]
            weighed = [d for d in e.diagnoses if d.probability >= LEAST or d.flips == e.taken.flips]
            names = [name for name in e.hierarchy.names if any(name in d.flips for d in weighed)]
            width = max(map(len, names), default=0)
            lines += [f"  {name:<{width}}  {self.distrust[name]:.2f}" for name in names]
        lines.append(f"inference takes the likeliest leaf, {self.decided}: {leaf} ({probability:.2f})")
        counts = f"takes {leaf}, too" if self.counts else "leaves the pixel out"
        lines.append(f"a threshold of {self.threshold:g} {counts}")
        return "\n".join(lines) + "\n"

    def _also(self) -> list[str]:
        """What was likely and is not in the drawing."""
        e = self.explanation
        drawn = {above for name in (*e.observed, *e.revised) for above in e.hierarchy.path(name)}
        rest = [(p, n) for n, p in zip(e.hierarchy.names, e.probabilities, strict=True) if n not in drawn]
        likely = [f"{name} {p:.2f}" for p, name in sorted(rest, reverse=True)[:LISTED] if p >= LIKELY]
        return [f"likeliest of the others: {', '.join(likely)}"] if likely else []


def explain_pixel(viewer: Viewer, look: Look, at: tuple[int, int], image: str = "image", budget: int = MOST) -> Pixel:
    """`at` is (column, row); of more than `budget` minimal diagnoses the likeliest are listed."""
    height, width = look.image.shape[:2]
    x, y = at
    if not (0 <= x < width and 0 <= y < height):
        raise OptionError(
            f"--at is {x},{y}, but {image} is {width} x {height} pixels: X is from 0 to {width - 1}, "
            f"Y from 0 to {height - 1}"
        )
    if viewer.diagnoser is None or look.result is None:
        raise flat(viewer.run)
    h = viewer.run.hierarchy
    degrees = look.result.truth_degrees
    distrust = viewer.diagnoser.conflict_degree(degrees).tolist() if degrees else []
    return Pixel(
        image=image,
        at=at,
        size=(width, height),
        checkpoint=viewer.which,
        explanation=viewer.diagnoser.explain_at(look.probs, (0, y, x), look.result, budget=budget),
        chosen=(h.leaves[int(look.chosen[y, x])], float(look.confidence[y, x])),
        decided=DECISIONS[viewer.run.config.model.decision],
        threshold=viewer.run.config.psi.threshold,
        distrust=dict(zip(h.names, distrust, strict=False)),
        seed=viewer.seed,
    )


def flat(run: Run) -> RunError:
    return RunError(
        f"{run.path}: the run has model.head flat, which predicts leaves alone and so breaks no rule; "
        "there is nothing to explain"
    )


def parse_at(text: str) -> tuple[int, int]:
    """Column and row.

    >>> parse_at("120,45")
    (120, 45)
    """
    found = re.fullmatch(r"\s*(-?\d+)\s*,\s*(-?\d+)\s*", text)
    if found is None:
        raise OptionError(f"--at is {text!r}, expected X,Y: column and row in pixels, such as 120,45")
    return int(found[1]), int(found[2])
