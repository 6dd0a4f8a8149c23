"""Diagnosis where the models are root-to-leaf paths: C, D and E together, whatever rules a user adds.

A user's rule can only forbid some paths, and what is left is again a tree whose models are its paths; so the closed
form of `docs/semantics.md` (fact 3) holds with the forbidden leaves pruned. All masks are floats of 0 and 1, because
arithmetic on floats is several times faster than Boolean selection on a CPU and no slower on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .layout import ROOT, Layout
from .taken import FORBIDDEN, Chance, Taken, cumulative_choice, first_largest


@dataclass(frozen=True)
class PathProgram:
    layout: Layout
    allowed: tuple[bool, ...]
    """Which leaves, in leaf order, satisfy the user's rules."""
    nothing: bool
    """Whether "no concept at all" is a model: the root is free and no rule forbids it."""


def log_weights(
    program: PathProgram, observed: Bool[Tensor, "n pixels"], flip: Float[Tensor, "n pixels"]
) -> Float[Tensor, "candidates pixels"]:
    """The log weight of every leaf's path, and of "nothing" last where it is a model; about -1e30 if not minimal.

    `flip` is the log odds that an output is wrong, log((1 - t) / t).
    """
    layout = program.layout
    truth = observed.to(flip.dtype)
    full = _full(program, truth)
    dominated = _dominated(program, truth, full)
    # a running sum of log r down the tree (fact 4); r belongs to "the concept is on the path"
    weight = torch.sub(1, truth, alpha=2).mul_(flip)
    for group in layout.groups[1:]:
        weight[group.rows] += weight[group.parent]
    leaf_rows = torch.tensor(layout.leaf_rows, device=flip.device)
    weight = weight.index_select(0, leaf_rows).sub_(dominated.index_select(0, leaf_rows), alpha=FORBIDDEN)
    pruned = [i for i, allowed in enumerate(program.allowed) if not allowed]
    if pruned:
        weight[pruned] = -FORBIDDEN
    if program.nothing:
        weight = torch.cat([weight, -FORBIDDEN * full[layout.groups[0].rows].amax(0, keepdim=True)])
    return weight


def diagnose(
    program: PathProgram,
    observed: Bool[Tensor, "n pixels"],
    flip: Float[Tensor, "n pixels"],
    choice: str,
    generator: Chance,
    expected: bool,
) -> Taken:
    """One minimal diagnosis per pixel: drawn with `choice="sample"`, else the likeliest."""
    weight = log_weights(program, observed, flip)
    best = weight.amax(0)
    # clamped first, because exp() of very large negative numbers is slow on a CPU; what is no diagnosis gets exactly 0
    share = torch.exp((weight - best).clamp_(min=-80)).mul_(
        torch.gt(weight, -FORBIDDEN / 2, out=torch.empty_like(weight))
    )
    total = share.sum(0)
    chosen = cumulative_choice(share, generator) if choice == "sample" else first_largest(weight, best)
    log_prob = weight.gather(0, chosen[None].long())[0] - best - torch.log(total)
    revised = _on_path(program.layout, chosen)
    marginal = _expected(program.layout, share / total) if expected else None
    return Taken(revised, log_prob, marginal, None)


def _full(program: PathProgram, truth: Float[Tensor, "n pixels"]) -> Float[Tensor, "n pixels"]:
    """full(v): v is observed, and is a leaf or has a full child."""
    full = truth.clone()
    for leaf, allowed in zip(program.layout.leaf_rows, program.allowed, strict=True):
        if not allowed:
            full[leaf] = 0
    for group in reversed(program.layout.groups[1:]):
        full[group.parent] *= full[group.rows].amax(0)
    return full


def _dominated(
    program: PathProgram, truth: Float[Tensor, "n pixels"], full: Float[Tensor, "n pixels"]
) -> Float[Tensor, "n pixels"]:
    """dominated(v): v is not observed, and some sibling is full or the parent is dominated."""
    dominated = 1 - truth
    for group in program.layout.groups:
        better = full[group.rows].amax(0)
        if group.parent != ROOT:
            better = torch.maximum(better, dominated[group.parent])
        elif program.nothing:
            better = torch.ones_like(better)
        dominated[group.rows] *= better
    return dominated


def _on_path(layout: Layout, chosen: Float[Tensor, " pixels"]) -> Bool[Tensor, "n pixels"]:
    index = torch.arange(len(layout.leaf_rows), device=chosen.device, dtype=chosen.dtype)
    on = torch.empty(len(layout.order), chosen.shape[0], dtype=torch.uint8, device=chosen.device)
    on[list(layout.leaf_rows)] = (index[:, None] == chosen).view(torch.uint8)
    for group in reversed(layout.groups[1:]):
        torch.amax(on[group.rows], 0, out=on[group.parent])
    return on.view(torch.bool)


def _expected(layout: Layout, share: Float[Tensor, "candidates pixels"]) -> Float[Tensor, "n pixels"]:
    expected = share.new_empty(len(layout.order), share.shape[1])
    expected[list(layout.leaf_rows)] = share[: len(layout.leaf_rows)]
    for group in reversed(layout.groups[1:]):
        torch.sum(expected[group.rows], 0, out=expected[group.parent])
    return expected
