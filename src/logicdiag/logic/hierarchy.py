"""A named tree of concepts, read from YAML, a dict or a built-in name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from ..errors import HierarchyError, hint
from ..kernels.layout import ROOT
from .formula import rule_name


class Hierarchy:
    """A tree of concepts, one channel each; the virtual Root is not among them.

    >>> h = Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
    >>> h.names
    ('animal', 'bird', 'cat', 'sky')
    >>> h.leaves, h.parent("bird"), h.children("animal"), h.path("cat")
    (('bird', 'cat', 'sky'), 'animal', ('bird', 'cat'), ('animal', 'cat'))

    Channels are in depth-first order, as written: every concept stands before its children.
    """

    def __init__(self, names: tuple[str, ...], parents: tuple[int, ...], title: str = "hierarchy") -> None:
        self.names = names
        self.parents = parents
        self.title = title

    # ---- reading -------------------------------------------------------------------------------

    @classmethod
    def load(cls, source: str | Path) -> Hierarchy:
        """A built-in name (`voc2012`, `cityscapes`, `coco`, `camvid`, `oxford_pets`) or a YAML file."""
        builtin = {Path(f.name).stem: f for f in _builtin_files()}
        if str(source) in builtin:
            return cls.from_yaml(builtin[str(source)].read_text("utf-8"), str(source))
        path = Path(source)
        if not path.is_file():
            raise HierarchyError(
                f"{str(source)!r} is neither a file nor a built-in hierarchy ({', '.join(sorted(builtin))})"
                + hint(str(source), builtin)
            )
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise HierarchyError(f"{path}: cannot be read as UTF-8 text: {error}") from None
        return cls.from_yaml(text, path.stem, where=f"{path}: ")

    @classmethod
    def from_yaml(cls, text: str, title: str = "hierarchy", where: str = "") -> Hierarchy:
        try:
            data = yaml.load(text, Loader=_StrictLoader)  # a SafeLoader: plain data, nothing executed
        except HierarchyError as error:
            raise HierarchyError(f"{where}{error}") from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
            problem = getattr(error, "problem", None) or "it holds characters that YAML does not allow"
            raise HierarchyError(f"{where}{place}not readable as YAML: {problem}") from None
        except RecursionError:
            raise HierarchyError(f"{where}nested too deeply for YAML") from None
        return cls._build(data, title, where)

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any] | list[Any], title: str = "hierarchy") -> Hierarchy:
        """`{"animal": ["bird", "cat"], "sky": None}`, nested to any depth."""
        return cls._build(tree, title, "")

    @classmethod
    def _build(cls, tree: Any, title: str, where: str) -> Hierarchy:
        names: list[str] = []
        parents: list[int] = []
        seen: dict[str, str] = {}
        stack = [(iter(_members(tree, None, where)), ROOT, id(tree))]
        while stack:
            members, parent, _ = stack[-1]
            for name, value in members:
                key = _checked_name(name, names[parent] if parent != ROOT else None, where)
                if key in seen:
                    raise HierarchyError(where + _duplicate(name, seen[key], parent, names))
                seen[key] = name
                names.append(name)
                parents.append(parent)
                if value is not None:
                    if any(id(value) == open_id for _, _, open_id in stack):
                        raise HierarchyError(f"{where}{name!r} contains itself (in YAML, a cycle through an anchor)")
                    stack.append((iter(_members(value, name, where)), len(names) - 1, id(value)))
                    break
            else:
                stack.pop()
        return cls(tuple(names), tuple(parents), title)

    # ---- writing -------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The mapping that `from_dict` reads back."""
        out: dict[str, Any] = {}
        inner: list[dict[str, Any]] = [{} if kids else None for kids in self.child_indices]  # type: ignore[misc]
        for index, (name, parent) in enumerate(zip(self.names, self.parents, strict=True)):
            (out if parent == ROOT else inner[parent])[name] = inner[index]
        return out

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    def tree(self) -> str:
        """The hierarchy drawn as text."""
        lines = [f"{self.title}  ({len(self)} nodes, {len(self.leaves)} leaves, {self.height} levels)"]
        last = {kids[-1] for kids in (*self.child_indices, self.top_indices) if kids}
        bars: list[str] = []
        for index, name in enumerate(self.names):
            depth = self.depths[index]
            del bars[depth - 1 :]
            lines.append("".join(bars) + ("└─ " if index in last else "├─ ") + name)
            bars.append("   " if index in last else "│  ")
        return "\n".join(lines)

    # ---- asking by name ------------------------------------------------------------------------

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        return tuple(self.names[i] for i in self.leaf_indices)

    def index(self, name: str) -> int:
        """The channel of a concept."""
        try:
            return self._index[name]
        except KeyError:
            raise HierarchyError(f"{name!r} is not in {self.title}{hint(str(name), self.names)}") from None

    def parent(self, name: str) -> str | None:
        parent = self.parents[self.index(name)]
        return None if parent == ROOT else self.names[parent]

    def children(self, name: str) -> tuple[str, ...]:
        return tuple(self.names[i] for i in self.child_indices[self.index(name)])

    def siblings(self, name: str) -> tuple[str, ...]:
        """The other children of the same parent; at the top level, the other top-level concepts."""
        me = self.index(name)
        return tuple(self.names[i] for i in self.group(self.parents[me]) if i != me)

    def path(self, name: str) -> tuple[str, ...]:
        """From the top level down to the concept itself."""
        return tuple(self.names[i] for i in self.path_indices(self.index(name)))

    def is_leaf(self, name: str) -> bool:
        return not self.child_indices[self.index(name)]

    @cached_property
    def levels(self) -> tuple[tuple[str, ...], ...]:
        """From the top level down; a shallow leaf stands for itself at every deeper level.

        >>> Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None}).levels
        (('animal', 'sky'), ('bird', 'cat', 'sky'))
        """
        return tuple(
            tuple(
                name
                for i, name in enumerate(self.names)
                if self.depths[i] == level or (self.depths[i] < level and not self.child_indices[i])
            )
            for level in range(1, self.height + 1)
        )

    # ---- asking by index -----------------------------------------------------------------------

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def child_indices(self) -> tuple[tuple[int, ...], ...]:
        kids: list[list[int]] = [[] for _ in self.names]
        for index, parent in enumerate(self.parents):
            if parent != ROOT:
                kids[parent].append(index)
        return tuple(map(tuple, kids))

    @cached_property
    def top_indices(self) -> tuple[int, ...]:
        return tuple(i for i, parent in enumerate(self.parents) if parent == ROOT)

    @cached_property
    def leaf_indices(self) -> tuple[int, ...]:
        return tuple(i for i, kids in enumerate(self.child_indices) if not kids)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """1 at the top level."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def height(self) -> int:
        return max(self.depths)

    def group(self, parent: int) -> tuple[int, ...]:
        """The children of a node, or the top level for `ROOT`."""
        return self.top_indices if parent == ROOT else self.child_indices[parent]

    def path_indices(self, index: int) -> tuple[int, ...]:
        path = []
        while index != ROOT:
            path.append(index)
            index = self.parents[index]
        return tuple(reversed(path))

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hierarchy):
            return NotImplemented
        return (self.names, self.parents) == (other.names, other.parents)

    def __hash__(self) -> int:
        return hash((self.names, self.parents))

    def __repr__(self) -> str:
        return f"Hierarchy({self.title!r}, {len(self)} nodes, {len(self.leaves)} leaves)"


class _StrictLoader(yaml.SafeLoader):
    """YAML that refuses a key written twice, where the plain loader keeps the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise HierarchyError(f"line {key_node.start_mark.line + 1}: YAML merge keys (<<) are not read")
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    line = key_node.start_mark.line + 1
                    raise HierarchyError(f"line {line}: {key_node.value!r} stands twice; names are unique")
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def _builtin_files() -> list[Any]:
    return [f for f in resources.files("logicdiag.hierarchies").iterdir() if f.name.endswith(".yaml")]


def _members(value: Any, owner: str | None, where: str) -> list[tuple[Any, Any]]:
    """The (name, value) pairs under a node; a list holds names or one-entry mappings."""
    if isinstance(value, Mapping):
        members = list(value.items())
    elif isinstance(value, (list, tuple)):
        members = [pair for item in value for pair in (item.items() if isinstance(item, Mapping) else [(item, None)])]
    elif owner is None and value is None:
        members = []
    else:
        of = "the hierarchy" if owner is None else repr(owner)
        raise HierarchyError(
            f"{where}{of} is {value!r} ({type(value).__name__}), expected a list or a mapping of concepts"
            + ("" if owner is None else ", or nothing for a leaf")
        )
    if not members:
        if owner is None:
            raise HierarchyError(f"{where}the hierarchy is empty, expected at least one concept")
        raise HierarchyError(f"{where}{owner!r} is a group without members; write it with no value for a leaf")
    return members


def _checked_name(name: Any, owner: str | None, where: str) -> str:
    under = "at the top level" if owner is None else f"under {owner!r}"
    if not isinstance(name, str):
        if name is None:
            read = "nothing"
        else:
            kinds = {bool: "a boolean", int: "a number", float: "a number", list: "a list"}
            read = f"{name!r}, {kinds.get(type(name), 'a ' + type(name).__name__)}"
        raise HierarchyError(f"{where}a name {under} was read as {read}; put it in quotes to make it a name")
    if not name.isprintable():
        raise HierarchyError(f"{where}the name {name!r} {under} has characters that cannot be printed")
    if not name.strip():
        raise HierarchyError(f"{where}a name {under} is empty")
    return rule_name(name)


def _duplicate(name: str, first: str, parent: int, names: list[str]) -> str:
    if parent != ROOT and names[parent] == name:
        return f"{name!r} stands under itself; a group of one leaf is that leaf: write it once, with no value"
    if first != name:
        return f"{name!r} and {first!r} are the same name in rules, where a space is an underscore"
    return f"{name!r} stands twice; names are unique"
