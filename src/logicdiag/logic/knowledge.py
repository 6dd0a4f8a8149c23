"""What a label must satisfy: the rule families C, D, E of a hierarchy, and rules a user wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool
from torch import Tensor

from ..errors import LogicDiagError, OptionError, ProbabilityError, choose
from ..kernels.layout import ROOT
from .formula import BOOLEAN, Formula, Rule, interpret, written
from .hierarchy import Hierarchy
from .parser import parse, parse_file

if TYPE_CHECKING:
    from .lint import Finding

FAMILIES = {"C": "composition", "D": "decomposition", "E": "exclusion"}
ROOTS = ("asserted", "free")


class KnowledgeBase:
    """The rules K over one hierarchy.

    >>> h = Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
    >>> kb = KnowledgeBase(h, families="CDE", rules=["forall x: ~cat(x)"])
    >>> kb.is_consistent(torch.tensor([[True, True, False, False], [True, False, True, False]]))
    tensor([ True, False])

    `families` is any subset of "CDE": C, a class implies its parent; D, a class implies one of its children, and with
    `root="asserted"` some top-level class is true; E, a class excludes its siblings, at the top level too.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        families: str = "CDE",
        rules: str | Path | Iterable[str | Rule | Formula] = (),
        root: str = "asserted",
    ) -> None:
        if not isinstance(hierarchy, Hierarchy):
            kind = type(hierarchy).__name__
            raise OptionError(f"hierarchy is a {kind}, expected a Hierarchy: use Hierarchy.load or Hierarchy.from_dict")
        self.hierarchy = hierarchy
        self.families = _read_families(families)
        self.root = choose("root", root, ROOTS)
        self.rules = tuple(_read_rules(rules, hierarchy))
        seen = set(FAMILIES)
        for rule in self.rules:
            if rule.name[:3] in ("C: ", "D: ", "E: "):
                text = f"a rule is named {rule.name!r}, as the rules of family {rule.name[0]} are"
                raise LogicDiagError(f"{rule.source}: {text}")
            if rule.name in seen:
                text = "stands for a family" if rule.name in FAMILIES else "another rule has"
                raise LogicDiagError(f"{rule.source}: a rule is named {rule.name!r}, a name that {text}")
            seen.add(rule.name)

    @property
    def pixel_rules(self) -> tuple[Rule, ...]:
        """The user's rules that hold or fail at one pixel, and so take part in diagnosis."""
        return tuple(rule for rule in self.rules if rule.body is not None)

    @property
    def root_holds(self) -> bool:
        """Whether "something is true" is demanded: the asserted root acts through D."""
        return self.root == "asserted" and "D" in self.families

    @cached_property
    def groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """(parent, children) of every sibling group, the top level first."""
        h = self.hierarchy
        return ((ROOT, h.top_indices), *((p, kids) for p, kids in enumerate(h.child_indices) if kids))

    def is_consistent(self, labels: Bool[Tensor, "*pixels n"]) -> Bool[Tensor, "*pixels"]:
        """Whether each label vector satisfies every rule that speaks of one pixel."""
        n = len(self.hierarchy)
        if labels.shape[-1:] != (n,):
            found = labels.shape[-1] if labels.dim() else 0
            raise ProbabilityError(
                f"labels have {found} channels in the last dimension, the hierarchy has {n} concepts"
            )
        if labels.dtype != torch.bool:
            raise ProbabilityError(f"labels are {labels.dtype}, expected torch.bool")
        broken = torch.zeros(labels.shape[:-1], dtype=torch.bool, device=labels.device)
        for violated in self._violations(labels):
            broken |= violated
        return ~broken

    def _violations(self, labels: Tensor) -> Iterator[Tensor]:
        for parent, kids in self.groups:
            own = None if parent == ROOT else labels[..., parent]
            some = labels[..., kids[0]].clone()
            for kid in kids[1:]:
                if "E" in self.families:
                    yield some & labels[..., kid]
                some |= labels[..., kid]
            if own is not None and "C" in self.families:
                yield some & ~own
            if "D" in self.families and (own is not None or self.root_holds):
                yield ~some if own is None else own & ~some
        for rule in self.pixel_rules:
            yield ~self.holds(rule, labels)

    def holds(self, rule: Rule, labels: Tensor) -> Tensor:
        """The truth of one per-pixel rule."""
        if rule.body is None:
            raise TypeError(f"{rule.name} does not speak of one pixel")
        index = self.hierarchy.index
        return interpret(rule.body, lambda name: labels[..., index(name)], BOOLEAN)

    def count_broken(self, labels: Bool[Tensor, "pixels n"]) -> dict[str, int]:
        """How many label vectors break each rule, by the rule's own text; rules nobody breaks are left out."""
        counts: dict[str, int] = {}
        names = [written(name) for name in self.hierarchy.names]
        for parent, kids in self.groups:
            group = labels[:, list(kids)]
            if parent != ROOT:
                own = labels[:, parent]
                if "C" in self.families:
                    for kid, count in zip(kids, (group & ~own[:, None]).sum(0).tolist(), strict=True):
                        counts[f"C: {names[kid]} -> {names[parent]}"] = count
            if "D" in self.families and (parent != ROOT or self.root_holds):
                none = ~group.any(1)
                text = f"D: {'root' if parent == ROOT else names[parent]} -> {' | '.join(names[k] for k in kids)}"
                counts[text] = int((none if parent == ROOT else none & own).sum())
            if "E" in self.families:
                both = (group.double().T @ group.double()).long().triu(1)
                for (i, j), count in zip(both.nonzero().tolist(), both[both > 0].tolist(), strict=True):
                    counts[f"E: {names[kids[i]]} -> ~{names[kids[j]]}"] = count
        for rule in self.pixel_rules:
            counts[rule.name] = int((~self.holds(rule, labels)).sum())
        return {name: count for name, count in counts.items() if count}

    def broken_by(self, label: Sequence[bool]) -> list[str]:
        """The rules that one label vector breaks: as `count_broken`, without a tensor for each rule."""
        found: list[str] = []
        names = [written(name) for name in self.hierarchy.names]
        for parent, kids in self.groups:
            true = [kid for kid in kids if label[kid]]
            holds = parent != ROOT and label[parent]
            if "C" in self.families and parent != ROOT and not holds:
                found += [f"C: {names[kid]} -> {names[parent]}" for kid in true]
            if "D" in self.families and not true and (holds or (parent == ROOT and self.root_holds)):
                above = "root" if parent == ROOT else names[parent]
                found.append(f"D: {above} -> {' | '.join(names[kid] for kid in kids)}")
            if "E" in self.families:
                found += [f"E: {names[a]} -> ~{names[b]}" for a, b in combinations(true, 2)]
        if self.pixel_rules:
            labels = torch.tensor(label, dtype=torch.bool)
            found += [rule.name for rule in self.pixel_rules if not self.holds(rule, labels)]
        return found

    def lint(self) -> list[Finding]:
        """Contradictions, classes that can never be true, redundant rules: see `logicdiag.logic.lint`."""
        from .lint import lint

        return lint(self)

    def __repr__(self) -> str:
        return (
            f"KnowledgeBase({self.hierarchy.title!r}, families={self.families!r}, "
            f"rules={len(self.rules)}, root={self.root!r})"
        )


def _read_families(families: str) -> str:
    letters = "".join(families).upper()
    for letter in letters:
        if letter not in FAMILIES:
            known = ", ".join(f"{k} ({v})" for k, v in FAMILIES.items())
            raise OptionError(f"families is {families!r}: {letter!r} is not one of {known}")
    return "".join(letter for letter in FAMILIES if letter in letters)


def _read_rules(rules: str | Path | Iterable[str | Rule | Formula], hierarchy: Hierarchy) -> Iterator[Rule]:
    if isinstance(rules, Path):
        yield from parse_file(rules, hierarchy.names)
    elif isinstance(rules, str):
        yield from parse(rules, hierarchy.names)
    else:
        for number, rule in enumerate(rules, 1):
            if isinstance(rule, str):
                yield from parse(rule, hierarchy.names, f"rule {number}")
            else:
                formula = rule.formula if isinstance(rule, Rule) else rule
                # read back from its own text, so that variables and concepts are checked in one place
                [checked] = parse(str(formula), hierarchy.names, f"rule {number}")
                yield Rule(rule.name, checked.formula, rule.source) if isinstance(rule, Rule) else checked
