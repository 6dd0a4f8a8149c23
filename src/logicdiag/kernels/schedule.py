"""The tables of an automaton, as compiled, and the order in which a buffer of states is filled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

KEEP_FALSE, FLIP_FALSE, KEEP_TRUE, FLIP_TRUE = range(4)
"""What was observed at a node, and whether the diagnosis flips it."""


@dataclass(frozen=True)
class Root:
    """The virtual Root: one state, no row."""

    states = 1


@dataclass(frozen=True)
class Observe:
    """One node: `state_of[kind]` is the state that a kind of observation and decision leads to, None if to none."""

    row: int
    state_of: tuple[int | None, int | None, int | None, int | None]

    @property
    def states(self) -> int:
        return 1 + max(state for state in self.state_of if state is not None)

    def ways(self, observed: bool) -> list[tuple[int, bool]]:
        """(state, whether the node is flipped there) for one observation; a state appears once at most."""
        kinds = (KEEP_TRUE, FLIP_TRUE) if observed else (KEEP_FALSE, FLIP_FALSE)
        return [
            (state, kind in (FLIP_FALSE, FLIP_TRUE)) for kind in kinds if (state := self.state_of[kind]) is not None
        ]


@dataclass(frozen=True)
class Join:
    """Two earlier steps side by side: pair k of their states, (left[k], right[k]), leads to state target[k].

    Pairs are sorted by target; a pair that breaks a rule, or is not minimal, is not listed.
    """

    first: int
    second: int
    left: tuple[int, ...]
    right: tuple[int, ...]
    target: tuple[int, ...]

    @property
    def states(self) -> int:
        return self.target[-1] + 1


@dataclass(frozen=True)
class Automaton:
    steps: tuple[Root | Observe | Join, ...]
    """Each after the steps it joins; the last has one state."""

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """In rising order: where they are all of them, nothing has to be picked out."""
        return tuple(sorted(step.row for step in self.steps if isinstance(step, Observe)))

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule.of(self)

    @property
    def size(self) -> int:
        """Number of transitions: the cost of a pixel."""
        return sum(len(step.target) if isinstance(step, Join) else step.states for step in self.steps)


@dataclass(frozen=True)
class Wave:
    """States computed together: rows `start` to `stop` of the buffer, those with the most ways first.

    The k-th way of the first `len(left[k])` states multiplies rows left[k] and right[k] of the buffer.
    """

    start: int
    stop: int
    left: tuple[tuple[int, ...], ...]
    right: tuple[tuple[int, ...], ...]
    draw: tuple[int, ...]
    """For the states with more than one way: which random number decides, one for each step among them."""

    @property
    def draws(self) -> int:
        return 1 + max(self.draw, default=-1)

    def counts(self) -> Iterator[tuple[int, int]]:
        """Per k: how many states have a k-th way, and how many of them have one more."""
        lengths = [len(rows) for rows in self.left]
        return zip(lengths, [*lengths[1:], 0], strict=True)

    @cached_property
    def _on_device(self) -> dict[torch.device, tuple[list[Tensor], list[Tensor], Tensor]]:
        return {}

    def indices(self, device: torch.device) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """`left`, `right` and `draw` as tensors."""
        if device not in self._on_device:
            self._on_device[device] = (
                [torch.tensor(rows, device=device) for rows in self.left],
                [torch.tensor(rows, device=device) for rows in self.right],
                torch.tensor(self.draw, dtype=torch.int64, device=device),
            )
        return self._on_device[device]


@dataclass(frozen=True)
class Schedule:
    """The buffer: row 0 is one; then per node keep-false, flip-false, keep-true, flip-true; then the waves."""

    nodes: int
    waves: tuple[Wave, ...]
    final: int
    """The row of the accepting state."""

    @property
    def height(self) -> int:
        return self.waves[-1].stop

    @property
    def draws(self) -> int:
        return sum(wave.draws for wave in self.waves)

    @cached_property
    def flat(self) -> Flat:
        return Flat.of(self)

    @classmethod
    def of(cls, automaton: Automaton) -> Schedule:
        node_of = {row: i for i, row in enumerate(automaton.rows)}
        ways, level = _ways_and_levels(automaton)
        # rows that need no work: the root, and states of a node that only one kind of observation leads to
        row_of: dict[tuple[int, int], int] = {}
        waiting: dict[int, list[tuple[int, int]]] = {}
        for number, step in enumerate(automaton.steps):
            for state in range(step.states):
                if isinstance(step, Root):
                    row_of[number, state] = 0
                elif isinstance(step, Observe) and len(ways[number][state]) == 1:
                    row_of[number, state] = _base(node_of[step.row], ways[number][state][0][0])
                else:
                    waiting.setdefault(level[number], []).append((number, state))
        waves: list[Wave] = []
        stop = 1 + 4 * len(node_of)
        for depth in sorted(waiting):
            targets = sorted(waiting[depth], key=lambda target: -len(ways[target[0]][target[1]]))
            left: list[list[int]] = []
            right: list[list[int]] = []
            for number, state in targets:
                step = automaton.steps[number]
                for k, (one, other) in enumerate(ways[number][state]):
                    if k == len(left):
                        left.append([])
                        right.append([])
                    if isinstance(step, Join):
                        left[k].append(row_of[step.first, one])
                        right[k].append(row_of[step.second, other])
                    elif isinstance(step, Observe):
                        left[k].append(_base(node_of[step.row], one))
                        right[k].append(0)
            for place, target in enumerate(targets):
                row_of[target] = stop + place
            choosing = [number for number, state in targets if len(ways[number][state]) > 1]
            order = {number: i for i, number in enumerate(dict.fromkeys(choosing))}
            waves.append(
                Wave(
                    stop,
                    stop + len(targets),
                    tuple(map(tuple, left)),
                    tuple(map(tuple, right)),
                    tuple(order[number] for number in choosing),
                )
            )
            stop += len(targets)
        return cls(len(node_of), tuple(waves), row_of[len(automaton.steps) - 1, 0])


class Flat(NamedTuple):
    """The same waves row by row: the ways of buffer row `first + i` are entries start[i] to start[i + 1]."""

    first: int
    height: int
    final: int
    start: NDArray[np.int64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    draw: NDArray[np.int64]
    """Per row: which random number decides between its ways."""

    @classmethod
    def of(cls, schedule: Schedule) -> Flat:
        start, left, right, draw = [0], [], [], []
        dealt = schedule.draws
        for wave in schedule.waves:
            dealt -= wave.draws  # random numbers are dealt from the last wave to the first
            for place in range(wave.stop - wave.start):
                for lefts, rights in zip(wave.left, wave.right, strict=True):
                    if place < len(lefts):
                        left.append(lefts[place])
                        right.append(rights[place])
                start.append(len(left))
                draw.append(dealt + wave.draw[place] if place < len(wave.draw) else 0)
        columns = (np.array(column, dtype=np.int64) for column in (start, left, right, draw))
        return cls(schedule.waves[0].start, schedule.height, schedule.final, *columns)


def _base(node: int, kind: int) -> int:
    return 1 + 4 * node + kind


def _ways_and_levels(automaton: Automaton) -> tuple[list[list[list[tuple[int, int]]]], list[int]]:
    """Per step and state, the pairs (or, for a node, the kinds) that lead to it; per step, what it waits for."""
    ways: list[list[list[tuple[int, int]]]] = []
    level: list[int] = []
    for step in automaton.steps:
        mine: list[list[tuple[int, int]]] = [[] for _ in range(step.states)]
        if isinstance(step, Join):
            for left, right, target in zip(step.left, step.right, step.target, strict=True):
                mine[target].append((left, right))
            level.append(1 + max(level[step.first], level[step.second]))
        else:
            for kind, state in enumerate(step.state_of if isinstance(step, Observe) else ()):
                if state is not None:
                    mine[state].append((kind, 0))
            level.append(0)
        ways.append(mine)
    return ways, level
