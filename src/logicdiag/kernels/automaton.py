"""Diagnosis by a bottom-up automaton whose accepted runs are the minimal diagnoses.

`logic/automaton.py` compiles it; here it only runs. Every state of every step has a row in one buffer, which holds per pixel
the summed weight of all partial diagnoses that end in the state. One sweep up gives the normaliser, one sweep down a draw,
the likeliest, or the marginals. Steps that do not wait for each other form a wave and are worked on together.

Weights are plain products of float32 where these cannot leave their range, which is nearly always; else of float64; and
where even those could, a pixel is worked on in logarithms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .taken import FORBIDDEN, Taken, uniform

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

    @cached_property
    def _on_device(self) -> dict[torch.device, tuple[list[Tensor], list[Tensor], Tensor]]:
        return {}

    def indices(self, device: torch.device) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """`left`, `right` and `step` as tensors."""
        if device not in self._on_device:
            self._on_device[device] = (
                [torch.tensor(rows, device=device) for rows in self.left],
                [torch.tensor(rows, device=device) for rows in self.right],
                torch.tensor(self.step, device=device),
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

IN_RANGE = ((torch.float32, 160.0), (torch.float64, 1300.0))
"""Bounds on the log of largest over smallest product, within which products neither overflow nor vanish."""

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
    cost, revised, log_prob = flip[rows], observed.clone(), flip.new_empty(flip.shape[1])
    marginal = observed.to(flip.dtype) if expected else None
    for pixels, dtype, arithmetic in _tiers(cost):
        truth = observed[rows][:, pixels].to(dtype)
        flips, taken, share = _diagnose_rows(
            automaton, truth, cost[:, pixels].to(dtype), arithmetic, choice, generator, expected
        )
        log_prob[pixels] = taken.to(flip.dtype)
        revised[rows] = _put(revised[rows], pixels, (truth != flips))
        if marginal is not None:
            marginal[rows] = _put(marginal[rows], pixels, (truth + share * (1 - 2 * truth)).to(flip.dtype))
    return Taken(revised, log_prob, marginal, None)


def _tiers(cost: Float[Tensor, "rows pixels"]) -> Iterator[tuple[Tensor | slice, torch.dtype, Arithmetic]]:
    """Which pixels are worked on in which arithmetic; at least in the precision they came in."""
    spread = torch.nn.functional.softplus(cost.abs()).sum(0)
    done = torch.zeros_like(spread, dtype=torch.bool)
    for dtype, most in IN_RANGE:
        if cost.dtype == torch.float64 and dtype != torch.float64:
            continue
        here = (spread < most) & ~done
        if here.all():
            yield slice(None), dtype, PRODUCTS
            return
        if here.any():
            yield here.nonzero()[:, 0], dtype, PRODUCTS
        done |= here
    if not done.all():
        yield (~done).nonzero()[:, 0], torch.float64, LOGARITHMS


def _put(into: Tensor, pixels: Tensor | slice, values: Tensor) -> Tensor:
    into[:, pixels] = values
    return into


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
    weights, scale = _sweep_up(schedule, truth, flip, arithmetic)
    total = weights[schedule.final]
    if arithmetic is PRODUCTS:
        total = torch.log(total) + scale
    if choice == "sample":
        on = _sweep_down(schedule, weights, arithmetic, generator)
    else:
        on = _follow_best(schedule, _sweep_up(schedule, truth, flip, LIKELIEST)[0])
    flips = _flipped(schedule, on)
    share = _flipped(schedule, _marginals(schedule, weights, arithmetic)) if expected else flips
    return flips, (flips * flip).sum(0) - total, share


def _flipped(schedule: Schedule, on: Buffer) -> Float[Tensor, "rows pixels"]:
    """What the rows of flip-false and flip-true say of each node."""
    kinds = on[1 : 1 + 4 * schedule.nodes].view(schedule.nodes, 4, -1)
    return kinds[:, FLIP_FALSE] + kinds[:, FLIP_TRUE]


def _sweep_up(schedule: Schedule, truth: Tensor, flip: Tensor, arithmetic: Arithmetic) -> tuple[Buffer, Tensor]:
    """The weight of every state; for products, the log of the factor they were divided by."""
    weights = flip.new_full((schedule.height, flip.shape[1]), arithmetic.zero)
    weights[0] = arithmetic.one
    base = weights[1 : 1 + 4 * schedule.nodes].view(schedule.nodes, 4, -1)
    scale = torch.zeros_like(flip)
    if arithmetic is PRODUCTS:
        # halfway between the least and the most that a node can contribute: products stay as near to 1 as they can
        scale = (torch.nn.functional.softplus(flip) + flip.clamp(max=0)).mul_(0.5)
        keep, change = torch.exp(-scale), torch.exp(flip - scale)
        torch.mul(keep, truth, out=base[:, KEEP_TRUE])
        torch.sub(keep, base[:, KEEP_TRUE], out=base[:, KEEP_FALSE])
        torch.mul(change, truth, out=base[:, FLIP_TRUE])
        torch.sub(change, base[:, FLIP_TRUE], out=base[:, FLIP_FALSE])
    else:
        torch.mul(truth, -FORBIDDEN, out=base[:, KEEP_FALSE])
        torch.add(base[:, KEEP_FALSE], flip, out=base[:, FLIP_FALSE])
        torch.mul(1 - truth, -FORBIDDEN, out=base[:, KEEP_TRUE])
        torch.add(base[:, KEEP_TRUE], flip, out=base[:, FLIP_TRUE])
    for wave in schedule.waves:
        for way, count in _ways(wave, weights, arithmetic):
            states = weights[wave.start : wave.start + count]
            arithmetic.plus(states, way, out=states)
    return weights, scale.sum(0)


def _ways(wave: Wave, weights: Buffer, arithmetic: Arithmetic) -> Iterator[tuple[Tensor, int]]:
    """The weight of each state's first way, then of each second one, and so on; and how many states have one."""
    lefts, rights, _ = wave.indices(weights.device)
    for left, right in zip(lefts, rights, strict=True):
        way = weights.index_select(0, left)
        yield arithmetic.times(way, weights.index_select(0, right), out=way), len(left)


def _shares(wave: Wave, weights: Buffer) -> Iterator[tuple[Tensor, int]]:
    """As `_ways`, from logarithms: each way's share of its state; exactly 0 for a way that is no diagnosis."""
    for way, count in _ways(wave, weights, LOGARITHMS):
        live = way > -FORBIDDEN / 2
        yield torch.exp((way - weights[wave.start : wave.start + count]).clamp_(-700, 0)).mul_(live), count


def _sweep_down(
    schedule: Schedule, weights: Buffer, arithmetic: Arithmetic, generator: torch.Generator | None
) -> Buffer:
    """1 at every state that a drawn run passes through.

    The running sum over the ways of a state repeats the additions of the sweep up, so it ends at exactly the same number;
    the draw is below it, and the way at which the sum first exceeds the draw has a positive weight.
    """
    on = torch.zeros_like(weights)
    on[schedule.final] = 1
    for wave in reversed(schedule.waves):
        draw = uniform((wave.steps, weights.shape[1]), weights, generator).index_select(
            0, wave.indices(weights.device)[2]
        )
        if arithmetic is PRODUCTS:
            draw *= weights[wave.start : wave.stop]
            ways = _ways(wave, weights, PRODUCTS)
        else:
            total = torch.zeros_like(draw)
            for way, count in _shares(wave, weights):
                total[:count] += way
            draw *= total
            ways = _shares(wave, weights)
        running = torch.zeros_like(draw)
        waiting = on[wave.start : wave.stop].clone()
        for k, (way, count) in enumerate(ways):
            running[:count] += way
            taken = torch.gt(running[:count], draw[:count], out=way).mul_(waiting[:count])
            waiting[:count] -= taken
            _pass_on(on, wave, k, taken)
    return on


def _follow_best(schedule: Schedule, weights: Buffer) -> Buffer:
    """1 at every state of the likeliest run; of equal ways, the first."""
    on = torch.zeros_like(weights)
    on[schedule.final] = 1
    for wave in reversed(schedule.waves):
        waiting = on[wave.start : wave.stop].clone()
        for k, (way, count) in enumerate(_ways(wave, weights, LIKELIEST)):
            taken = torch.eq(way, weights[wave.start : wave.start + count], out=way).mul_(waiting[:count])
            waiting[:count] -= taken
            _pass_on(on, wave, k, taken)
    return on


def _marginals(schedule: Schedule, weights: Buffer, arithmetic: Arithmetic) -> Buffer:
    """The posterior probability that a run passes through each state."""
    on = torch.zeros_like(weights)
    on[schedule.final] = 1
    for wave in reversed(schedule.waves):
        ways = _ways(wave, weights, PRODUCTS) if arithmetic is PRODUCTS else _shares(wave, weights)
        for k, (way, count) in enumerate(ways):
            if arithmetic is PRODUCTS:
                way = (way / weights[wave.start : wave.start + count]).nan_to_num_(0.0)
            _pass_on(on, wave, k, way * on[wave.start : wave.start + count])
    return on


def _pass_on(on: Buffer, wave: Wave, k: int, taken: Tensor) -> None:
    lefts, rights, _ = wave.indices(on.device)
    on.index_add_(0, lefts[k], taken)
    on.index_add_(0, rights[k], taken)
