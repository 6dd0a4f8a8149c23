"""Rule text -> formulas, with a caret under what is wrong.

>>> [rule] = parse("no_birds_in_sky: forall x: bird(x) -> ~sky(x)  # a comment")
>>> rule.name, str(rule.formula)
('no_birds_in_sky', 'forall x: bird(x) -> ~sky(x)')

The grammar below is the documentation of the language. One rule per line; an indented line continues the rule above.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, cast

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from ..errors import LogicDiagError, RuleError, hint
from .formula import NAME, And, Atom, Exists, Forall, Formula, Iff, Implies, Not, Or, Rule, rule_name

GRAMMAR = (
    r"""
start     : _NEWLINE? [rule (_NEWLINE rule)*]
rule      : [_name ":"] sentence
_name     : NAME | QUOTED

?sentence : implied | implied _IFF sentence           -> iff
?implied  : either | either _IMPLIES implied          -> implies
?either   : both | both (_OR both)+                   -> disjunction
?both     : unary | unary (_AND unary)+               -> conjunction
?unary    : _NOT unary                                -> negation
          | FORALL NAME ":" sentence                  -> forall
          | EXISTS NAME ":" sentence                  -> exists
          | (NAME | QUOTED) "(" NAME ")"              -> atom
          | "(" sentence ")"

FORALL.2  : /forall\b|∀/
EXISTS.2  : /exists\b|∃/
_AND      : "&" | "&&" | "∧"
_OR       : "|" | "||" | "∨"
_NOT      : "~" | "!" | "¬"
_IMPLIES  : "->" | "=>" | "→" | "⇒"
_IFF      : "<->" | "<=>" | "↔" | "⇔"
QUOTED    : /"[^"\n]+"|'[^'\n]+'/
_NEWLINE  : /\s*\n(?=[^\s#])/
%ignore /#[^\n]*/
%ignore /\s+/
NAME      : /"""
    + NAME.replace("/", r"\/")
    + "/\n"
)

_DEEPEST = 200

_EXPECTED = {
    "NAME": "a name",
    "QUOTED": None,
    "FORALL": "'forall x:'",
    "EXISTS": "'exists x:'",
    "LPAR": "'('",
    "RPAR": "')'",
    "COLON": "':'",
    "_NEWLINE": None,
    "_NOT": None,
    "$END": "the end of the rule",
}


def parse(text: str, names: Iterable[str] | None = None, source: str = "rules") -> list[Rule]:
    """All rules of a text. With `names`, an unknown concept is an error with the nearest name."""
    text = "\n".join(text.removeprefix("\ufeff").splitlines())
    flush = textwrap.dedent(text).rstrip()
    try:
        return _read(flush, names, source)
    except RuleError as error:
        lines = text.splitlines() or [""]
        shift = len(lines[error.line - 1]) - len(flush.splitlines()[error.line - 1]) if flush else 0
        shift = max(0, min(shift, len(lines[error.line - 1]) - len(lines[error.line - 1].lstrip())))
        raise RuleError(error.problem, text, error.line, error.column + shift, source) from None


def _read(text: str, names: Iterable[str] | None, source: str) -> list[Rule]:
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        raise _syntax_error(error, text, source) from None
    reader = _Reader(text, source, None if names is None else {rule_name(n): n for n in names})
    rules: dict[str, Rule] = {}
    for node in tree.children:
        if isinstance(node, Tree):
            rule = reader.rule(node)
            if rule.name in rules:
                problem = f"two rules are named {rule.name!r}; names are unique"
                raise RuleError(problem, text, node.meta.line, node.meta.column, source)
            rules[rule.name] = rule
    return list(rules.values())


def parse_file(path: str | Path, names: Iterable[str] | None = None) -> list[Rule]:
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise LogicDiagError(f"{path}: the rule file cannot be read: {reason}") from None
    return parse(text, names, str(path))


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", propagate_positions=True, maybe_placeholders=True)


class _Reader:
    """Turns Lark's trees into formulas, checking variables and concepts where their position is known."""

    def __init__(self, text: str, source: str, known: dict[str, str] | None) -> None:
        self.text, self.source, self.known = text, source, known

    def rule(self, node: Tree[Any]) -> Rule:
        *name, sentence = node.children
        formula = self.formula(sentence, None)
        given = [str(part) for part in name if part is not None]
        return Rule(_unquoted(given[0]) if given else str(formula), formula, self.source)

    def formula(self, node: Tree[Any], variable: Token | None, depth: int = 0) -> Formula:
        kind, parts = str(node.data), cast("list[Any]", node.children)
        if depth > _DEEPEST:
            raise RuleError(
                f"nested more than {_DEEPEST} deep", self.text, node.meta.line, node.meta.column, self.source
            )
        if kind == "atom":
            return self.atom(parts, variable)
        if kind in ("forall", "exists"):
            _, bound, body = parts
            if variable is not None:
                self.fail(
                    parts[0],
                    f"a quantifier inside the scope of {str(variable)!r}; a rule quantifies side by side, as in "
                    "'(exists x: rider(x)) -> (exists x: bicycle(x))'",
                )
            return (Forall if kind == "forall" else Exists)(str(bound), self.formula(body, bound, depth + 1))
        read = [self.formula(part, variable, depth + 1) for part in parts]
        if kind == "negation":
            return Not(read[0])
        if kind in ("conjunction", "disjunction"):
            return _balanced(And if kind == "conjunction" else Or, read)
        return (Implies if kind == "implies" else Iff)(read[0], read[1])

    def atom(self, parts: list[Any], variable: Token | None) -> Atom:
        written, used = parts
        if variable is None:
            self.fail(used, f"{str(used)!r} is not bound; put 'forall {used}:' before the formula")
        if str(used) != str(variable):
            self.fail(used, f"{str(used)!r} is not bound here; the variable of this quantifier is {str(variable)!r}")
        name = rule_name(_unquoted(str(written)))
        if self.known is not None:
            if name not in self.known:
                self.fail(written, f"unknown class {name!r}{hint(name, self.known)}")
            name = self.known[name]
        return Atom(name, str(used))

    def fail(self, token: Token, problem: str) -> None:
        raise RuleError(problem, self.text, token.line or 1, token.column or 1, self.source)


def _unquoted(text: str) -> str:
    return text[1:-1] if text[0] in "\"'" else text


def _balanced(make: type[And] | type[Or], parts: list[Formula]) -> Formula:
    """A long chain of one connective as a shallow tree, so that hundreds of classes in a rule stay cheap."""
    if len(parts) == 1:
        return parts[0]
    half = (len(parts) + 1) // 2
    return make(_balanced(make, parts[:half]), _balanced(make, parts[half:]))


def _syntax_error(error: UnexpectedInput, text: str, source: str) -> RuleError:
    if isinstance(error, UnexpectedCharacters):
        return RuleError(f"{error.char!r} has no meaning in a rule", text, error.line, error.column, source)
    assert isinstance(error, UnexpectedToken)
    expected = [_EXPECTED.get(name, "a connective") for name in sorted(error.accepts or error.expected)]
    wanted = " or ".join(dict.fromkeys(word for word in expected if word))
    line, column = error.line, error.column
    if error.token.type == "$END" or not str(error.token).strip():
        lines = text.rstrip().splitlines() or [""]
        line = len(lines) if error.token.type == "$END" else error.line
        column = len(lines[line - 1].split("#")[0].rstrip()) + 1
        found = "the rule ends"
    else:
        found = f"{str(error.token)!r} stands"
    return RuleError(f"{found} where {wanted} is expected", text, line, column, source)
