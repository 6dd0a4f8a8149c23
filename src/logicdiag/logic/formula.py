"""The frozen syntax tree of rules, and what can be done with it without knowing a hierarchy.

>>> rule = Forall("x", Implies(Atom("bird"), Not(Atom("sky"))))
>>> str(rule)
'forall x: bird(x) -> ~sky(x)'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, Union

T = TypeVar("T")

NAME = r"\w+(?:[-./]\w+)*"
"""What a name in a rule looks like; anything else is put in quotes."""


@dataclass(frozen=True)
class Atom:
    name: str
    variable: str = "x"

    def __str__(self) -> str:
        return f"{written(self.name)}({self.variable})"


@dataclass(frozen=True)
class Not:
    body: Formula

    def __str__(self) -> str:
        return f"~{_wrapped(self.body, self)}"


@dataclass(frozen=True)
class _Binary:
    left: Formula
    right: Formula

    def __str__(self) -> str:
        whole: Any = self
        return f"{_wrapped(self.left, whole)} {_SYMBOL[type(self)]} {_wrapped(self.right, whole, right=True)}"


class And(_Binary):
    pass


class Or(_Binary):
    pass


class Implies(_Binary):
    pass


class Iff(_Binary):
    pass


@dataclass(frozen=True)
class _Quantified:
    variable: str
    body: Formula

    def __str__(self) -> str:
        return f"{type(self).__name__.lower()} {self.variable}: {self.body}"


class Forall(_Quantified):
    pass


class Exists(_Quantified):
    pass


Formula: TypeAlias = Union[Atom, Not, And, Or, Implies, Iff, Forall, Exists]  # noqa: UP007

_SYMBOL: dict[type, str] = {And: "&", Or: "|", Implies: "->", Iff: "<->"}
_BINDING: dict[type, int] = {Iff: 1, Implies: 2, Or: 3, And: 4, Not: 5, Atom: 6, Forall: 0, Exists: 0}


def _wrapped(part: Formula, whole: Formula, right: bool = False) -> str:
    loose = _BINDING[type(part)] < _BINDING[type(whole)]
    same = type(part) is type(whole) and not isinstance(whole, Not)
    # -> and <-> bind to the right, so an equal part on the left keeps its parentheses; & and | are associative
    regroup = same and not right and isinstance(whole, (Implies, Iff))
    return f"({part})" if loose or regroup else str(part)


def rule_name(name: str) -> str:
    """How a concept is written in rules: a space is an underscore."""
    return "_".join(name.split())


def written(name: str) -> str:
    """A concept as rule text, quoted where its characters ask for it."""
    name = rule_name(name)
    plain = re.fullmatch(NAME, name) and name not in ("forall", "exists")
    quote = "'" if '"' in name else '"'
    return name if plain else f"{quote}{name}{quote}"


def atoms(formula: Formula) -> tuple[str, ...]:
    """The concepts a formula speaks of, each once, as they come.

    >>> atoms(Implies(Atom("a"), Or(Atom("b"), Atom("a"))))
    ('a', 'b')
    """
    found: dict[str, None] = {}
    stack = [formula]
    while stack:
        part = stack.pop()
        if isinstance(part, Atom):
            found[part.name] = None
        elif isinstance(part, (Not, _Quantified)):
            stack.append(part.body)
        else:
            stack += [part.right, part.left]
    return tuple(found)


@dataclass(frozen=True)
class Algebra:
    """What the connectives mean: Boolean, fuzzy, or clauses of a solver."""

    negate: Callable[[Any], Any]
    conjoin: Callable[[Any, Any], Any]
    disjoin: Callable[[Any, Any], Any]
    imply: Callable[[Any, Any], Any]
    equal: Callable[[Any, Any], Any]


BOOLEAN = Algebra(
    negate=lambda a: ~a,
    conjoin=lambda a, b: a & b,
    disjoin=lambda a, b: a | b,
    imply=lambda a, b: ~a | b,
    equal=lambda a, b: ~(a ^ b),
)
"""For Boolean tensors and arrays."""


def interpret(
    formula: Formula,
    atom: Callable[[str], T],
    algebra: Algebra,
    quantify: Callable[[Formula], T] | None = None,
) -> T:
    """The value of a formula, bottom-up. Quantified parts are handed to `quantify`, not entered."""
    if isinstance(formula, Atom):
        return atom(formula.name)
    if isinstance(formula, _Quantified):
        if quantify is None:
            raise TypeError(f"a quantifier inside a per-pixel formula: {formula}")
        return quantify(formula)
    if isinstance(formula, Not):
        value: T = algebra.negate(interpret(formula.body, atom, algebra, quantify))
        return value
    left = interpret(formula.left, atom, algebra, quantify)
    right = interpret(formula.right, atom, algebra, quantify)
    operation: dict[type, Callable[[T, T], T]] = {
        And: algebra.conjoin,
        Or: algebra.disjoin,
        Implies: algebra.imply,
        Iff: algebra.equal,
    }
    return operation[type(formula)](left, right)


def restrict(formula: Formula | bool, values: Mapping[str, bool]) -> Formula | bool:
    """The formula that remains once some concepts are known, with the constants folded away.

    >>> str(restrict(Implies(Atom("a"), Or(Atom("b"), Atom("c"))), {"a": True, "b": False}))
    'c(x)'
    >>> restrict(Implies(Atom("a"), Atom("b")), {"a": False})
    True
    """
    if isinstance(formula, bool):
        return formula
    if isinstance(formula, Atom):
        return values.get(formula.name, formula)
    if isinstance(formula, Not):
        return _not(restrict(formula.body, values))
    if isinstance(formula, _Quantified):
        raise TypeError(f"a quantifier inside a per-pixel formula: {formula}")
    left, right = restrict(formula.left, values), restrict(formula.right, values)
    if isinstance(formula, And):
        return _and(left, right)
    if isinstance(formula, Or):
        return _not(_and(_not(left), _not(right)))
    if isinstance(formula, Implies):
        return _not(_and(left, _not(right)))
    if isinstance(left, bool):
        return right if left else _not(right)
    if isinstance(right, bool):
        return left if right else _not(left)
    return True if left == right else Iff(left, right)


def _not(part: Formula | bool) -> Formula | bool:
    if isinstance(part, bool):
        return not part
    return part.body if isinstance(part, Not) else Not(part)


def _and(left: Formula | bool, right: Formula | bool) -> Formula | bool:
    if left is False or right is False:
        return False
    if left is True or left == right:
        return right
    return left if right is True else And(left, right)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Rule:
    """A named sentence. Only a `forall` over one pixel takes part in diagnosis; see `docs/semantics.md`."""

    name: str
    formula: Formula
    source: str = field(default="", compare=False)

    @property
    def body(self) -> Formula | None:
        """The per-pixel formula of a `forall` rule; None where the rule speaks of the batch as a whole."""
        if isinstance(self.formula, Forall) and not quantified(self.formula.body):
            return self.formula.body
        return None

    def __str__(self) -> str:
        return str(self.formula) if self.name == str(self.formula) else f"{self.name}: {self.formula}"


def quantified(formula: Formula) -> bool:
    """Whether a quantifier stands anywhere in the formula."""
    stack = [formula]
    while stack:
        part = stack.pop()
        if isinstance(part, _Quantified):
            return True
        if isinstance(part, Not):
            stack.append(part.body)
        elif isinstance(part, _Binary):
            stack += [part.left, part.right]
    return False
