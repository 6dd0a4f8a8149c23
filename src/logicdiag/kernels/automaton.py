"""Diagnosis by a bottom-up automaton whose accepted runs are the minimal diagnoses.

`logic/automaton.py` compiles it; here it only runs. Each step carries, per state, the log of the summed weight of all partial
diagnoses that end in the state. One sweep up gives the normaliser, one sweep down a draw, the best, or the marginals.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .taken import FORBIDDEN, Taken, cumulative_choice, first_largest

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

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(step.row for step in self.steps if isinstance(step, Observe))

    @property
    def size(self) -> int:
        """Number of transitions: the cost of a pixel."""
        return sum(len(step.target) if isinstance(step, Join) else step.states for step in self.steps)


Weights = Float[Tensor, "states pixels"]


def diagnose(
    automaton: Automaton,
    observed: Bool[Tensor, "n pixels"],
    flip: Float[Tensor, "n pixels"],
    choice: str,
    generator: torch.Generator | None,
    expected: bool,
) -> Taken:
    """As `paths.diagnose`, for the rows of this automaton; other rows are left as observed."""
    truth = observed.to(flip.dtype)
    sums = _sweep_up(automaton, truth, flip, torch.logsumexp)
    weights = sums if choice == "sample" else _sweep_up(automaton, truth, flip, torch.amax)
    flips = _sweep_down(automaton, truth, weights, choice, generator)
    rows = list(automaton.rows)
    log_prob = (flips * flip[rows]).sum(0) - sums[-1][0]
    revised = observed.clone()
    revised[rows] ^= flips > 0.5
    marginal = None
    if expected:
        marginal = truth.clone()
        marginal[rows] += _flip_probability(automaton, truth, sums) * (1 - 2 * truth[rows])
    return Taken(revised, log_prob, marginal, None)


def _sweep_up(automaton: Automaton, truth: Tensor, flip: Tensor, combine) -> list[Weights]:  # type: ignore[no-untyped-def]
    """The weight of every state of every step, with `combine` over the ways that lead to it."""
    weights: list[Tensor] = []
    for step in automaton.steps:
        if isinstance(step, Root):
            weights.append(flip.new_zeros(1, flip.shape[1]))
            continue
        if isinstance(step, Observe):
            not_false, not_true = -FORBIDDEN * truth[step.row], -FORBIDDEN * (1 - truth[step.row])
            by_kind = (not_false, not_false + flip[step.row], not_true, not_true + flip[step.row])
            kinds_of: list[list[Tensor]] = [[] for _ in range(step.states)]
            for kind, state in enumerate(step.state_of):
                if state is not None:
                    kinds_of[state].append(by_kind[kind])
            weights.append(torch.stack([reduce(torch.maximum, kinds) for kinds in kinds_of]))
            continue
        ways = _ways(step, weights)
        out = ways.new_empty(step.states, ways.shape[1])
        start = 0
        for state in range(step.states):
            stop = start + step.target.count(state)
            if stop - start == 1:
                out[state] = ways[start]
            else:
                combine(ways[start:stop], 0, out=out[state])
            start = stop
        weights.append(out)
    return weights


def _ways(step: Join, weights: list[Weights]) -> Float[Tensor, "ways pixels"]:
    return weights[step.first][list(step.left)] + weights[step.second][list(step.right)]


def _sweep_down(
    automaton: Automaton, truth: Tensor, weights: list[Weights], choice: str, generator: torch.Generator | None
) -> Float[Tensor, "rows pixels"]:
    """Choose a way into the chosen state of each step, from the last to the first; 1 where a node is flipped."""
    last = weights[-1]
    state: list[Tensor] = [last.new_zeros(last.shape[1])] * len(automaton.steps)
    flips: list[Tensor] = []
    for number in range(len(automaton.steps) - 1, -1, -1):
        step = automaton.steps[number]
        if isinstance(step, Observe):
            table = last.new_zeros(2, step.states)
            for was in (False, True):
                for reached, flipped in step.ways(was):
                    table[int(was), reached] = float(flipped)
            flips.append(table[truth[step.row].long(), state[number].long()])
        if not isinstance(step, Join):
            continue
        target = last.new_tensor(step.target)
        ways = _ways(step, weights) - FORBIDDEN * (target[:, None] != state[number]).to(last.dtype)
        best = ways.amax(0)
        if choice == "sample":
            way = cumulative_choice(torch.exp(ways - best), generator).long()
        else:
            way = first_largest(ways, best).long()
        state[step.first] = last.new_tensor(step.left)[way]
        state[step.second] = last.new_tensor(step.right)[way]
    return torch.stack(flips[::-1])


def _flip_probability(automaton: Automaton, truth: Tensor, weights: list[Weights]) -> Float[Tensor, "rows pixels"]:
    """The posterior probability that each node is flipped, from the last step down to the first."""
    shares = [torch.zeros_like(w) for w in weights]
    shares[-1].fill_(1)
    flips: list[Tensor] = []
    for number in range(len(automaton.steps) - 1, -1, -1):
        step = automaton.steps[number]
        if isinstance(step, Observe):
            here = torch.zeros_like(truth[step.row])
            for was in (False, True):
                for reached, flipped in step.ways(was):
                    if flipped:
                        here += shares[number][reached] * (truth[step.row] == was)
            flips.append(here)
        if not isinstance(step, Join):
            continue
        target = list(step.target)
        share = shares[number][target] * torch.exp((_ways(step, weights) - weights[number][target]).clamp(max=0))
        device = share.device
        shares[step.first].index_add_(0, torch.tensor(step.left, device=device), share)
        shares[step.second].index_add_(0, torch.tensor(step.right, device=device), share)
    return torch.stack(flips[::-1])
