"""Which classes of a classifier are which concept of the hierarchy: a YAML file that a person writes.

cat: [tabby, tiger cat, Siamese cat]
dog: 151-268
cow: [345, water buffalo]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..data.dataset import ranges
from ..errors import ConfigError, hint
from ..logic.hierarchy import Hierarchy
from ..models.classifier import class_names
from .load import read_settings

NUMBERS = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")
Classes = Mapping[str, tuple[int, ...]]
"""Concept -> classes, by number from 0 on."""


class Siblings(NamedTuple):
    """Concepts that are told apart."""

    parent: str | None
    """None: they are at the top level."""
    children: tuple[str, ...]


def read_classes(path: str | Path, h: Hierarchy, count: int) -> dict[str, tuple[int, ...]]:
    """The file's classes of each concept, in the order of the hierarchy; `count` is how many the classifier has."""
    return check_classes(read_settings(path, "the file of classes", "cat: [tabby, 282-285]"), h, count, str(path))


def check_classes(given: Mapping[Any, Any], h: Hierarchy, count: int, source: str) -> dict[str, tuple[int, ...]]:
    """The same of what a file holds.

    >>> h = Hierarchy.from_dict({"animal": ["cat", "dog"]})
    >>> check_classes({"dog": "151-153", "cat": ["Tabby", 283]}, h, 1000, "my.yaml")
    {'cat': (281, 283), 'dog': (151, 152, 153)}
    """
    if not given:
        raise ConfigError(f"{source}: names no concept, expected such as cat: [tabby, 282-285]")
    for concept in given:
        if concept not in h.names:
            raise ConfigError(f"{source}: {concept!r} is no concept of {h.title}{hint(str(concept), h.names)}")
    numbers = _Numbers(count)
    found = {}
    for concept in h.names:
        if concept in given:
            words = given[concept] if isinstance(given[concept], list) else [given[concept]]
            if words in ([], [None]):
                raise ConfigError(f"{source}: {concept} has no class, expected such as [tabby, 282-285]")
            found[concept] = tuple(sorted({n for word in words for n in numbers.of(word, f"{source}: {concept}")}))
    for group in siblings_among(found, h):
        _check_group(group, found, h, source)
    return found


def siblings_among(concepts: Iterable[str], h: Hierarchy) -> list[Siblings]:
    """The concepts by their parent, in the order of the hierarchy.

    >>> h = Hierarchy.from_dict({"animal": ["cat", "dog"], "sky": None})
    >>> siblings_among(["dog", "cat"], h)
    [Siblings(parent='animal', children=('cat', 'dog'))]
    """
    wanted = set(concepts)
    parents = dict.fromkeys(h.parent(name) for name in h.names if name in wanted)
    return [Siblings(p, tuple(n for n in h.names if n in wanted and h.parent(n) == p)) for p in parents]


def _check_group(group: Siblings, found: Classes, h: Hierarchy, source: str) -> None:
    first = group.children[0]
    if len(group.children) < 2:
        others = h.siblings(first)
        instead = f"add one of {', '.join(others)}, or leave it out" if others else "it has none; leave it out"
        raise ConfigError(f"{source}: {first} is there alone, and a witness tells siblings apart; {instead}")
    owner: dict[int, str] = {}
    for concept in group.children:
        if shared := [number for number in found[concept] if number in owner]:
            what = f"class {shared[0]} is" if len(shared) == 1 else f"classes {ranges(shared)} are"
            raise ConfigError(f"{source}: {what} both {owner[shared[0]]} and {concept}, which exclude each other")
        owner.update(dict.fromkeys(found[concept], concept))


class _Numbers:
    """From what stands in the file to numbers of classes."""

    def __init__(self, count: int) -> None:
        self.count = count
        names = class_names(count)
        self.known = names is not None
        self.by_name: dict[str, list[int]] = {}
        for number, synonyms in enumerate(names or ()):
            for name in dict.fromkeys(map(_folded, synonyms)):
                self.by_name.setdefault(name, []).append(number)

    def of(self, word: Any, where: str) -> range | list[int]:
        if isinstance(word, bool) or not isinstance(word, (int, str)):
            raise ConfigError(f"{where}: {word!r} is no class, expected a number, a range such as 151-268, or a name")
        if match := NUMBERS.fullmatch(str(word).strip()):
            first, last = int(match[1]), int(match[2] or match[1])
            if not first <= last < self.count:
                raise ConfigError(f"{where}: {word!r} is no class, expected some of 0 to {self.count - 1}")
            return range(first, last + 1)
        if not self.known:
            raise ConfigError(
                f"{where}: {word!r} is no number, and the names of this classifier's {self.count} classes are not "
                "known; expected numbers and ranges"
            )
        numbers = self.by_name.get(_folded(str(word)), [])
        if len(numbers) > 1:
            raise ConfigError(f"{where}: {word!r} is the name of classes {ranges(numbers)}; write the number")
        if not numbers:
            raise ConfigError(f"{where}: {word!r} is no class of ImageNet{hint(_folded(str(word)), self.by_name)}")
        return numbers


def _folded(name: str) -> str:
    """As case and underscores do not matter."""
    return " ".join(name.casefold().replace("_", " ").split())
