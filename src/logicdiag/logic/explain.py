"""One pixel in words: which rules broke, which diagnoses there were, which was taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .hierarchy import Hierarchy
from .knowledge import KnowledgeBase

if TYPE_CHECKING:
    from .diagnosis import Diagnoses, Diagnosis


@dataclass(frozen=True)
class Explanation:
    """Print it for people; `as_dict` for programs."""

    hierarchy: Hierarchy
    probabilities: tuple[float, ...]
    broken: tuple[str, ...]
    """The rules that the observed labels break, as text."""
    diagnoses: Diagnoses
    taken: Diagnosis
    strategy: str

    @property
    def observed(self) -> tuple[str, ...]:
        return tuple(n for n, p in zip(self.hierarchy.names, self.probabilities, strict=True) if p > 0.5)

    @property
    def revised(self) -> tuple[str, ...]:
        seen = set(self.observed) ^ self.taken.flips
        return tuple(name for name in self.hierarchy.names if name in seen)

    def as_dict(self) -> dict[str, Any]:
        return {
            "probabilities": dict(zip(self.hierarchy.names, self.probabilities, strict=True)),
            "observed": list(self.observed),
            "broken": list(self.broken),
            "diagnoses": [{"flips": self._ordered(d), "probability": d.probability} for d in self.diagnoses],
            "exhaustive": self.diagnoses.exhaustive,
            "total": self.diagnoses.total,
            "taken": {"flips": self._ordered(self.taken), "probability": self.taken.probability},
            "strategy": self.strategy,
            "revised": list(self.revised),
        }

    def __str__(self) -> str:
        lines = [*self._drawing(), "", f"observed: {_listed(self.observed)}"]
        if not self.broken:
            return "\n".join([*lines, "no rule is broken; the observation is its own diagnosis", ""])
        lines.append(f"broken rules ({len(self.broken)}):")
        lines += [f"  {text}" for text in self.broken]
        lines.append(f"minimal diagnoses ({self._how_many()}):")
        for diagnosis in self.diagnoses[:12]:
            mark = "->" if diagnosis.flips == self.taken.flips else "  "
            lines.append(f"{mark}{diagnosis.probability:7.1%}  {self._in_words(diagnosis)}")
        if len(self.diagnoses) > 12:
            lines.append(f"           and {len(self.diagnoses) - 12} less likely ones")
        lines.append(f"taken ({self.strategy}): {self._in_words(self.taken)}")
        lines.append(f"revised: {_listed(self.revised)}")
        return "\n".join(lines) + "\n"

    def _how_many(self) -> str:
        count, total = len(self.diagnoses), self.diagnoses.total
        if self.diagnoses.exhaustive:
            return f"{count}"
        return f"the likeliest {count}" + (f" of {total:,}" if total is not None else "")

    def _drawing(self) -> list[str]:
        """The part of the tree that was observed or revised, with probabilities."""
        h, shown = self.hierarchy, set(self.observed) | set(self.revised)
        for name in list(shown):
            shown.update(h.path(name))
        rows = [(index, name) for index, name in enumerate(h.names) if name in shown]
        width = max((2 * h.depths[index] + len(name) for index, name in rows), default=0)
        lines = []
        for index, name in rows:
            label = "  " * (h.depths[index] - 1) + name
            before, after = name in self.observed, name in self.revised
            change = "" if before == after else f"  flipped to {'true' if after else 'false'}"
            lines.append(f"{label:<{width}} {self.probabilities[index]:.2f}  {'true ' if before else 'false'}{change}")
        return lines or ["nothing is predicted"]

    def _ordered(self, diagnosis: Diagnosis) -> list[str]:
        return [name for name in self.hierarchy.names if name in diagnosis.flips]

    def _in_words(self, diagnosis: Diagnosis) -> str:
        wrong_true = [name for name in self._ordered(diagnosis) if name in self.observed]
        wrong_false = [name for name in self._ordered(diagnosis) if name not in self.observed]
        parts = [f"not {name}" for name in wrong_true] + [f"also {name}" for name in wrong_false]
        return ", ".join(parts) if parts else "nothing is wrong"


def explain_observation(
    kb: KnowledgeBase,
    probabilities: Sequence[float],
    diagnoses: Diagnoses,
    taken: Diagnosis,
    strategy: str,
) -> Explanation:
    return Explanation(
        kb.hierarchy,
        tuple(probabilities),
        tuple(kb.broken_by([p > 0.5 for p in probabilities])),
        diagnoses,
        taken,
        strategy,
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "nothing"
