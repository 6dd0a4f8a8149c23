"""Diagnosis by a bottom-up automaton whose accepted runs are the minimal diagnoses.

`logic/automaton.py` compiles it; here it only runs. Every state of every step has a row in one buffer, which holds per pixel
the summed weight of all partial diagnoses that end in the state. One sweep up gives the normaliser, one sweep down a draw,
the likeliest, or the marginals. Steps that do not wait for each other form a wave and are worked on together.

Weights are plain products where they cannot leave the range of float64, which is nearly always and fast; a pixel for which
they could is worked on in logarithms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .taken import FORBIDDEN, Taken

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
        return [(state, kind in (FLIP_FALSE, FLIP_TRUE)) for kind in kinds if (state := self.state_of[kind]) is not None]


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
        return tuple(step.row for step in self.steps if isinstance(step, Observe))

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
    step: tuple[int, ...]
    """Which step of the wave each state belongs to; a pixel chooses one state per step, so draws one number per step."""

    @property
    def steps(self) -> int:
        return 1 + max(self.step)


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
            order = {number: i for i, number in enumerate(dict.fromkeys(number for number, _ in targets))}
            waves.append(
                Wave(
                    stop,
                    stop + len(targets),
                    tuple(map(tuple, left)),
                    tuple(map(tuple, right)),
                    tuple(order[number] for number, _ in targets),
                )
            )
            stop += len(targets)
        return cls(len(node_of), tuple(waves), row_of[len(automaton.steps) - 1, 0])


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


@dataclass(frozen=True)
class Arithmetic:
    """How weights multiply along a way and add up over ways."""

    times: Callable[..., Tensor]
    plus: Callable[..., Tensor]
    one: float
    zero: float


PRODUCTS = Arithmetic(torch.mul, torch.add, one=1.0, zero=0.0)
LOGARITHMS = Arithmetic(torch.add, torch.logaddexp, one=0.0, zero=-FORBIDDEN)
LIKELIEST = Arithmetic(torch.add, torch.maximum, one=0.0, zero=-FORBIDDEN)

IN_RANGE = 600.0
"""Bound on |log| of every product, within which float64 products neither overflow nor vanish."""

Buffer = Float[Tensor, "states pixels"]


def diagnose(
    automaton: Automaton,
    observed: Bool[Tensor, "n pixels"],
    flip: Float[Tensor, "n pixels"],
    choice: str,
    generator: torch.Generator | None,
    expected: bool,
) -> Taken:
    """As `paths.diagnose`, for the rows of this automaton; other rows are left as observed."""
    rows = list(automaton.rows)
    truth, cost = observed[rows].double(), flip[rows].double()
    in_range = (cost.abs() + 0.7).sum(0) < IN_RANGE
    if in_range.all():
        flips, log_prob, share = _diagnose_rows(automaton, truth, cost, PRODUCTS, choice, generator, expected)
    else:
        flips, log_prob, share = torch.empty_like(cost), torch.empty_like(cost[0]), torch.empty_like(cost)
        for arithmetic, where in ((PRODUCTS, in_range), (LOGARITHMS, ~in_range)):
            pixels = where.nonzero()[:, 0]
            some = _diagnose_rows(automaton, truth[:, pixels], cost[:, pixels], arithmetic, choice, generator, expected)
            flips[:, pixels], log_prob[pixels] = some[0].double(), some[1]
            if expected:
                share[:, pixels] = some[2]
    revised = observed.clone()
    revised[rows] ^= flips > 0.5
    marginal = None
    if expected:
        marginal = observed.to(flip.dtype)
        marginal[rows] = (truth + share * (1 - 2 * truth)).to(flip.dtype)
    return Taken(revised, log_prob.to(flip.dtype), marginal, None)


def _diagnose_rows(
    automaton: Automaton,
    truth: Float[Tensor, "rows pixels"],
    flip: Float[Tensor, "rows pixels"],
    arithmetic: Arithmetic,
    choice: str,
    generator: torch.Generator | None,
    expected: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """1 where a row is flipped; the log probability of that; the probability that a row is flipped, if wanted."""
    schedule = automaton.schedule
    weights = _sweep_up(schedule, truth, flip, arithmetic)
    total = weights[schedule.final]
    if arithmetic is PRODUCTS:
        total = torch.log(total)
    if choice == "sample":
        on = _sweep_down(schedule, weights, arithmetic, generator)
    else:
        on = _follow_best(schedule, _sweep_up(schedule, truth, flip, LIKELIEST))
    flips = _flipped(schedule, on)
    share = _flipped(schedule, _marginals(schedule, weights, arithmetic)) if expected else flips
    return flips, (flips * flip).sum(0) - total, share


def _flipped(schedule: Schedule, on: Buffer) -> Float[Tensor, "rows pixels"]:
    """What the rows of flip-false and flip-true say of each node."""
    kinds = on[1 : 1 + 4 * schedule.nodes].view(schedule.nodes, 4, -1)
    return kinds[:, FLIP_FALSE] + kinds[:, FLIP_TRUE]


def _sweep_up(schedule: Schedule, truth: Tensor, flip: Tensor, arithmetic: Arithmetic) -> Buffer:
    """The weight of every state."""
    weights = flip.new_full((schedule.height, flip.shape[1]), arithmetic.zero)
    weights[0] = arithmetic.one
    base = weights[1 : 1 + 4 * schedule.nodes].view(schedule.nodes, 4, -1)
    if arithmetic is PRODUCTS:
        ratio = torch.exp(flip)
        torch.sub(1, truth, out=base[:, KEEP_FALSE])
        torch.mul(base[:, KEEP_FALSE], ratio, out=base[:, FLIP_FALSE])
        base[:, KEEP_TRUE] = truth
        torch.mul(truth, ratio, out=base[:, FLIP_TRUE])
    else:
        torch.mul(truth, -FORBIDDEN, out=base[:, KEEP_FALSE])
        torch.add(base[:, KEEP_FALSE], flip, out=base[:, FLIP_FALSE])
        torch.mul(1 - truth, -FORBIDDEN, out=base[:, KEEP_TRUE])
        torch.add(base[:, KEEP_TRUE], flip, out=base[:, FLIP_TRUE])
    for wave in schedule.waves:
        for way, count in _ways(wave, weights, arithmetic):
            states = weights[wave.start : wave.start + count]
            arithmetic.plus(states, way, out=states)
    return weights


def _ways(wave: Wave, weights: Buffer, arithmetic: Arithmetic):  # type: ignore[no-untyped-def]
    """The weight of each state's first way, then of each second one, and so on; and how many states have one."""
    for left, right in zip(wave.left, wave.right, strict=True):
        way = weights.index_select(0, torch.tensor(left, device=weights.device))
        other = weights.index_select(0, torch.tensor(right, device=weights.device))
        yield arithmetic.times(way, other, out=way), len(left)


def _sweep_down(
    schedule: Schedule, weights: Buffer, arithmetic: Arithmetic, generator: torch.Generator | None
) -> Buffer:
    """1 at every state that a drawn run passes through.

    The running sum over the ways of a state repeats the additions of the sweep up, so it ends at exactly the same number;
    the draw is below it, and the way at which the sum first exceeds the draw has a positive weight.
    """
    on = torch.zeros(weights.shape, dtype=torch.float32, device=weights.device)
    on[schedule.final] = 1
    for wave in reversed(schedule.waves):
        shape = (wave.steps, weights.shape[1])
        draw = torch.rand(shape, generator=generator, dtype=torch.float32, device=weights.device).double()
        draw = draw.index_select(0, torch.tensor(wave.step, device=weights.device))
        total = weights[wave.start : wave.stop]
        if arithmetic is LOGARITHMS:
            total = torch.zeros_like(draw)
            for way, count in _shares(wave, weights):
                total[:count] += way
        draw *= total
        running = torch.zeros_like(draw)
        open_until = on[wave.start : wave.stop].clone()
        for k, (way, count) in enumerate(
            _ways(wave, weights, arithmetic) if arithmetic is PRODUCTS else _shares(wave, weights)
        ):
            running[:count] += way
            still_open = torch.le(running[:count], draw[:count], out=torch.empty_like(open_until[:count]))
            still_open *= open_until[:count]
            taken = open_until[:count] - still_open
            open_until[:count] = still_open
            _pass_on(on, wave, k, taken)
    return on


def _shares(wave: Wave, weights: Buffer):  # type: ignore[no-untyped-def]
    """As `_ways`, from logarithms: each way's share of its state; exactly 0 for a way that is no diagnosis."""
    for way, count in _ways(wave, weights, LOGARITHMS):
        live = way > -FORBIDDEN / 2
        yield torch.exp((way - weights[wave.start : wave.start + count]).clamp_(-700, 0)).mul_(live), count


def _follow_best(schedule: Schedule, weights: Buffer) -> Buffer:
    """1 at every state of the likeliest run; of equal ways, the first."""
    on = torch.zeros(weights.shape, dtype=torch.float32, device=weights.device)
    on[schedule.final] = 1
    for wave in reversed(schedule.waves):
        open_until = on[wave.start : wave.stop].clone()
        for k, (way, count) in enumerate(_ways(wave, weights, LIKELIEST)):
            taken = torch.eq(way, weights[wave.start : wave.start + count], out=torch.empty_like(open_until[:count]))
            taken *= open_until[:count]
            open_until[:count] -= taken
            _pass_on(on, wave, k, taken)
    return on


def _marginals(schedule: Schedule, weights: Buffer, arithmetic: Arithmetic) -> Buffer:
    """The posterior probability that a run passes through each state."""
    on = torch.zeros_like(weights)
    on[schedule.final] = 1
    for wave in reversed(schedule.waves):
        for k, (way, count) in enumerate(
            _ways(wave, weights, arithmetic) if arithmetic is PRODUCTS else _shares(wave, weights)
        ):
            share = way
            if arithmetic is PRODUCTS:
                share = (way / weights[wave.start : wave.start + count]).nan_to_num_(0.0)
            _pass_on(on, wave, k, share * on[wave.start : wave.start + count])
    return on


def _pass_on(on: Buffer, wave: Wave, k: int, taken: Tensor) -> None:
    on.index_add_(0, torch.tensor(wave.left[k], device=on.device), taken)
    on.index_add_(0, torch.tensor(wave.right[k], device=on.device), taken)
