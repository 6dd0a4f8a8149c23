"""Diagnosis by a bottom-up automaton whose accepted runs are the minimal diagnoses.

`logic/automaton.py` compiles it; here it only runs. Every state of every step has a row in one buffer, which holds per
pixel the summed weight of all partial diagnoses that end in the state. One sweep up gives the normaliser, one sweep
down a draw, the likeliest, or the marginals. Steps that do not wait for each other form a wave, worked on together.

Weights are plain products of float32 where these stay well inside their range, which is nearly always; else of float64;
and where even those could leave it, a pixel is worked on in logarithms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from . import native
from .schedule import FLIP_FALSE, FLIP_TRUE, KEEP_FALSE, KEEP_TRUE, Automaton, Schedule, Wave
from .taken import FORBIDDEN, Chance, Taken, part_of, uniform


@dataclass(frozen=True)
class Arithmetic:
    """How weights multiply along a way and add up over ways."""

    times: Callable[..., Tensor]
    plus: Callable[..., Tensor]
    one: float


PRODUCTS = Arithmetic(torch.mul, torch.add, one=1.0)
LOGARITHMS = Arithmetic(torch.add, torch.logaddexp, one=0.0)
LIKELIEST = Arithmetic(torch.add, torch.maximum, one=0.0)

SMALL = {torch.float32: 1e-18, torch.float64: 1e-150}
"""Two weights above this have a product that does not vanish; a pixel with a smaller one goes to the next
arithmetic.
"""

Buffer = Float[Tensor, "states pixels"]


def in_tiles(device: torch.device) -> bool:
    """Whether pixels go through a sweep a few at a time, in machine code, and need no buffer of all states."""
    return native.available and device.type == "cpu"


def diagnose(
    automaton: Automaton,
    observed: Bool[Tensor, "n pixels"],
    flip: Float[Tensor, "n pixels"],
    choice: str,
    generator: Chance,
    expected: bool,
) -> Taken:
    """As `paths.diagnose`, for the rows of this automaton; other rows are left as observed."""
    rows = None if len(automaton.rows) == len(observed) else torch.tensor(automaton.rows, device=flip.device)
    truth, odds = (observed, flip) if rows is None else (observed[rows], flip[rows])
    work = _Work(automaton.schedule, truth, odds, choice, generator, expected)
    first_left = work.native() if in_tiles(flip.device) else None
    tiers = [(torch.float32, PRODUCTS), (torch.float64, PRODUCTS), (torch.float64, LOGARITHMS)]
    done = (flip.dtype == torch.float64) + (first_left is not None)
    pixels = first_left
    for dtype, arithmetic in tiers[done:]:
        if pixels is not None and not pixels.numel():
            break
        pixels = work.attempt(pixels, dtype, arithmetic)
    if rows is None:
        return Taken(work.revised, work.log_prob, work.marginal, None)
    revised, marginal = observed.clone(), None
    revised[rows] = work.revised
    if work.marginal is not None:
        marginal = observed.to(flip.dtype)
        marginal[rows] = work.marginal
    return Taken(revised, work.log_prob, marginal, None)


class _Work:
    """The pixels of one call; each attempt settles those whose weights stay in range."""

    def __init__(
        self,
        schedule: Schedule,
        truth: Bool[Tensor, "rows pixels"],
        flip: Float[Tensor, "rows pixels"],
        choice: str,
        generator: Chance,
        expected: bool,
    ) -> None:
        self.schedule, self.truth, self.flip = schedule, truth.contiguous(), flip.contiguous()
        self.choice, self.generator, self.expected = choice, generator, expected
        self.revised = truth
        self.log_prob = flip.new_zeros(flip.shape[1])
        self.marginal: Tensor | None = None

    def native(self) -> Int64[Tensor, " left"]:
        """Work on all pixels by plain products, in machine code; those that are not settled are handed back."""
        less = self.flip.abs().neg_().exp_()
        if self.expected or self.choice != "sample":
            share, sums = native.expect(self.schedule, self.truth, self.flip, less)
            self.marginal = self.truth + share * (1 - 2 * self.truth.to(share.dtype)) if self.expected else None
        if self.choice == "sample":
            draws = uniform((self.schedule.draws, self.flip.shape[1]), self.flip, self.generator)
            self.revised, flips, sums = native.sample(self.schedule, self.truth, self.flip, less, draws)
        else:
            self.revised, flips = native.likeliest(self.schedule, self.truth, self.flip)
        scale = self.flip.clamp(min=0).sum(0)
        self.log_prob = flips - torch.log(sums.total) - scale
        small = SMALL[self.flip.dtype]
        return ((sums.least <= small) | (sums.total >= 1 / small)).nonzero()[:, 0]

    def attempt(self, pixels: Tensor | None, dtype: torch.dtype, arithmetic: Arithmetic) -> Int64[Tensor, " left"]:
        """Work on some pixels (all, if None); those that are not settled by it are handed back, to be overwritten."""
        truth, flip = self._part(self.truth, pixels).to(dtype), self._part(self.flip, pixels).to(dtype)
        weights, scale, settled = _sweep_up(self.schedule, truth, flip, arithmetic)
        total = weights[self.schedule.final]
        total = torch.log(total) + scale if arithmetic is PRODUCTS else total
        if self.choice == "sample":
            on = _sweep_down(self.schedule, weights, arithmetic, part_of(self.generator, pixels))
        else:
            on = _follow_best(self.schedule, _sweep_up(self.schedule, truth, flip, LIKELIEST)[0])
        flips = _flipped(self.schedule, on)
        self.revised = self._put(self.revised, pixels, (truth - flips).abs_() > 0.5)
        self.log_prob = self._put(self.log_prob, pixels, (flips * flip).sum(0) - total)
        if self.expected:
            share = _flipped(self.schedule, _marginals(self.schedule, weights, arithmetic))
            self.marginal = self._put(self.marginal, pixels, truth + share * (1 - 2 * truth))
        left = (~settled).nonzero()[:, 0]
        return left if pixels is None else pixels[left]

    @staticmethod
    def _part(tensor: Tensor, pixels: Tensor | None) -> Tensor:
        return tensor if pixels is None else tensor.index_select(-1, pixels)

    def _put(self, into: Tensor | None, pixels: Tensor | None, values: Tensor) -> Tensor:
        values = values if values.dtype == torch.bool else values.to(self.flip.dtype)
        return values if pixels is None or into is None else into.index_copy_(-1, pixels, values)


def _flipped(schedule: Schedule, on: Buffer) -> Float[Tensor, "rows pixels"]:
    """What the rows of flip-false and flip-true say of each node."""
    kinds = on[1 : 1 + 4 * schedule.nodes].view(schedule.nodes, 4, -1)
    return kinds[:, FLIP_FALSE] + kinds[:, FLIP_TRUE]


def _sweep_up(
    schedule: Schedule, truth: Tensor, flip: Tensor, arithmetic: Arithmetic
) -> tuple[Buffer, Float[Tensor, " pixels"], Bool[Tensor, " pixels"]]:
    """The weight of every state; the log of the factor that products are short of; and where they stay in range."""
    weights = flip.new_empty((schedule.height, flip.shape[1]))
    weights[0] = arithmetic.one
    base = weights[1 : 1 + 4 * schedule.nodes].view(schedule.nodes, 4, -1)
    scale = least = torch.zeros_like(flip[0])
    if arithmetic is PRODUCTS:
        gain = flip.clamp(min=0)  # the likelier of keep and flip weighs 1: sums stay near the number of diagnoses
        scale = gain.sum(0)
        keep, change = torch.exp(-gain), torch.exp(flip - gain)
        least = torch.minimum(keep, change).amin(0)
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
        states = weights[wave.start : wave.stop]
        lefts, rights, _ = wave.indices(weights.device)
        for k, (left, right) in enumerate(zip(lefts, rights, strict=True)):
            way, other = weights.index_select(0, left), weights.index_select(0, right)
            if k == 0:  # every state has a first way
                arithmetic.times(way, other, out=states)
            else:
                arithmetic.plus(states[: len(left)], arithmetic.times(way, other, out=way), out=states[: len(left)])
    if arithmetic is not PRODUCTS:
        return weights, scale, torch.ones_like(scale, dtype=torch.bool)
    states = weights[schedule.waves[0].start :]
    dead = torch.eq(states, 0, out=torch.empty_like(states))
    least = torch.minimum(least, dead.add_(states).amin(0))
    return weights, scale, (least > SMALL[flip.dtype]) & (weights[schedule.final] < 1 / SMALL[flip.dtype])


def _ways(
    wave: Wave, weights: Buffer, arithmetic: Arithmetic, last: bool = True
) -> Iterator[tuple[Float[Tensor, "ways pixels"], int]]:
    """The weight of each state's first way, then of each second one, and so on; and how many states have one.

    Without `last`, only of the states that have a further way, and so not of the last ways of all.
    """
    lefts, rights, _ = wave.indices(weights.device)
    for left, right, (count, more) in zip(lefts, rights, wave.counts(), strict=True):
        size = count if last else more
        if size:
            way = weights.index_select(0, left[:size])
            yield arithmetic.times(way, weights.index_select(0, right[:size]), out=way), count


def _shares(wave: Wave, weights: Buffer, last: bool = True) -> Iterator[tuple[Float[Tensor, "ways pixels"], int]]:
    """As `_ways`, from logarithms: each way's share of its state; exactly 0 for a way that is no diagnosis."""
    for way, count in _ways(wave, weights, LOGARITHMS, last):
        live = way > -FORBIDDEN / 2
        yield torch.exp((way - weights[wave.start : wave.start + len(way)]).clamp_(-700, 0)).mul_(live), count


def _sweep_down(schedule: Schedule, weights: Buffer, arithmetic: Arithmetic, generator: Chance) -> Buffer:
    """1 at every state that a drawn run passes through.

    The running sum over the ways of a state repeats the additions of the sweep up, so it ends at exactly the same
    number; the draw is below it, so the way at which the sum first exceeds the draw has a positive weight, and where
    none but the last is left it is the last.
    """
    on = torch.zeros_like(weights)
    on[schedule.final] = 1
    draws = uniform((schedule.draws, weights.shape[1]), weights, generator)
    for wave in reversed(schedule.waves):
        mine, draws = draws[: wave.draws], draws[wave.draws :]
        draw = mine.index_select(0, wave.indices(weights.device)[2])
        if arithmetic is PRODUCTS:
            draw *= weights[wave.start : wave.start + len(draw)]
            ways = _ways(wave, weights, PRODUCTS, last=False)
        else:
            total = weights.new_zeros(wave.stop - wave.start, weights.shape[1])
            for way, count in _shares(wave, weights):
                total[:count] += way
            draw *= total[: len(draw)]
            ways = _shares(wave, weights, last=False)
        waiting = on[wave.start : wave.stop].clone()
        running = torch.empty(0)
        for k, (way, count) in enumerate(ways):
            running = way if k == 0 else running[: len(way)].add_(way)
            exceeds = torch.gt(running, draw[: len(way)], out=torch.empty_like(running))
            _take(on, wave, k, waiting[:count], exceeds)
        _pass_on(on, wave, len(wave.left) - 1, waiting[: len(wave.left[-1])])
    return on


def _follow_best(schedule: Schedule, weights: Buffer) -> Buffer:
    """1 at every state of the likeliest run; of equal ways, the first."""
    on = torch.zeros_like(weights)
    on[schedule.final] = 1
    for wave in reversed(schedule.waves):
        waiting = on[wave.start : wave.stop].clone()
        for k, (way, count) in enumerate(_ways(wave, weights, LIKELIEST, last=False)):
            best = torch.eq(way, weights[wave.start : wave.start + len(way)], out=way)
            _take(on, wave, k, waiting[:count], best)
        _pass_on(on, wave, len(wave.left) - 1, waiting[: len(wave.left[-1])])
    return on


def _take(on: Buffer, wave: Wave, k: int, waiting: Tensor, wanted: Tensor) -> None:
    """Let states that still wait go their k-th way: where it is wanted, and where it is their last."""
    more = len(wanted)
    torch.mul(waiting[:more], wanted, out=wanted)
    waiting[:more] -= wanted
    _pass_on(on, wave, k, wanted)
    if more < len(waiting):
        _pass_on(on, wave, k, waiting[more:], more)


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


def _pass_on(on: Buffer, wave: Wave, k: int, taken: Float[Tensor, "some pixels"], first: int = 0) -> None:
    """Hand what some states take of their k-th way, from state `first` on, to the two states it comes from."""
    lefts, rights, _ = wave.indices(on.device)
    some = slice(first, first + len(taken))
    on.index_add_(0, lefts[k][some], taken)
    on.index_add_(0, rights[k][some], taken)
