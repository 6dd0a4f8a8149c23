"""One family of exceptions. Each message names the user's own text, file, class or pixel."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LogicDiagError(ValueError):
    """A user's mistake, told in a sentence."""


class HierarchyError(LogicDiagError):
    """A hierarchy that is not a tree of uniquely named concepts."""


class RuleError(LogicDiagError):
    """Rule text that cannot be read; `line` and `column` count from 1."""

    def __init__(self, problem: str, text: str, line: int, column: int, source: str = "rules") -> None:
        self.problem, self.line, self.column = problem, line, column
        lines = text.splitlines() or [""]
        shown = lines[min(line, len(lines)) - 1].replace("\t", " ")
        super().__init__(f"{source}:{line}:{column}: {problem}\n  {shown}\n  {' ' * (column - 1)}^")


class ContradictionError(LogicDiagError):
    """A knowledge base that no label can satisfy; `rules` is a smallest set that contradicts itself."""

    def __init__(self, rules: tuple[str, ...]) -> None:
        self.rules = rules
        super().__init__("no label can satisfy the rules; these contradict each other: " + "; ".join(rules))


class ProbabilityError(LogicDiagError):
    """A tensor that does not hold one probability per concept."""


class OptionError(LogicDiagError):
    """An option with a value that is not offered."""


class DataError(LogicDiagError):
    """A data set, list, image or mask that is not as it should be; the file is named."""


class ConfigError(LogicDiagError):
    """A configuration that cannot be used; the key is named."""


class WeightsError(LogicDiagError):
    """Weights that are not there, cannot be read, or do not fit the model."""


class RunError(LogicDiagError):
    """A run folder that is not there, is not whole, or is in use."""


class TangledRulesWarning(UserWarning):
    """User rules so intertwined that diagnosis falls back to a search."""


def hint(word: str, options: Iterable[str]) -> str:
    """The nearest right spelling, as the end of a sentence.

    >>> hint("brid", ["bird", "cat"])
    " (did you mean 'bird'?)"
    >>> hint("zzz", ["bird", "cat"])
    ''
    """
    options = list(options)
    folded = {option.casefold(): option for option in reversed(options)}
    near = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return f" (did you mean {folded[near[0]]!r}?)" if near else ""


def choose(option: str, value: str, offered: Iterable[str]) -> str:
    """`value` if it is offered, else an error that lists what is."""
    offered = list(offered)
    if value in offered:
        return value
    raise OptionError(f"{option} is {value!r}, expected one of {', '.join(offered)}{hint(str(value), offered)}")
