"""Diagnosis of root-to-leaf paths (C, D and E together) in one read of the predictions, for GPUs.

One program takes a block of pixels of one image through the tree, in depth-first order, which is the order of the
channels. A subtree does not know yet whether something outside dominates it, so what it hands up holds for both cases:

    case 0    nothing outside dominates: a leaf of it is minimal as far as the subtree can tell
    case 1    some sibling of the subtree's root is full, or its parent is dominated: paths that begin with an output
              that was not observed are no minimal diagnoses (fact 3 of `docs/semantics.md`)

For each case: the summed weight of its minimal diagnoses, one of them, and the weight of that one. Joining siblings
adds the sums, and keeps the one or the other with the right probability; so the root ends with a draw from all minimal
diagnoses. Which node has which children is read from a table while the program runs, so a tree of 500 nodes compiles
as fast as one of 20.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .fused import Found
from .layout import ROOT, Layout, leaf_intervals
from .paths import PathProgram
from .triton_read import as_read, how_to_read, number, read

MOST_LEVELS = 8
"""Deeper trees are left to PyTorch: each level is one more loop inside of the others to compile."""
SINGLE_LEVELS = 5
"""Products of more ratios than this, each up to a million, are taken in float64."""
BLOCK, WARPS = 128, 1
LABELLED = 1024
REGISTERS, MORE_REGISTERS = 64, 80
"""Fewer than the compiler would take, so that more programs hide each other's reads; more with more to hand back."""
LEAST = tl.constexpr(1e-6)  # of a probability of normality, and of its complement
OBSERVED = tl.constexpr(2.0**84)  # times the least ratio, still beyond the reach of all others' sum in float64
SOME = tl.constexpr(2.0**50)


@dataclass(frozen=True)
class Sweep:
    """What the kernel reads of a tree; channels are in depth-first order."""

    kids: Tensor
    """How many children each channel has."""
    first: Tensor
    last: Tensor
    """The leaves under each channel: from `first` to before `last`."""
    allowed: Tensor
    """1 for the leaves that satisfy the user's rules."""
    top: int
    levels: int
    pruned: bool
    nothing: bool

    @property
    def candidates(self) -> int:
        """Leaves, and "no concept at all" where that is a model."""
        return len(self.allowed) + self.nothing

    @classmethod
    def of(cls, program: PathProgram, device: torch.device | str) -> Sweep:
        layout = program.layout
        n = len(layout.order)
        parents = [ROOT if (up := layout.parents[layout.row_of[c]]) == ROOT else layout.order[up] for c in range(n)]
        kids = [0] * n
        for channel, parent in enumerate(parents):
            assert parent < channel
            if parent != ROOT:
                kids[parent] += 1
        first, last = leaf_intervals(parents)

        def table(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        return cls(
            table(kids),
            table(first),
            table(last),
            table([int(a) for a in program.allowed]),
            parents.count(ROOT),
            levels(layout),
            not all(program.allowed),
            program.nothing,
        )


def diagnose(
    sweep: Sweep,
    values: Tensor,
    trust: Tensor,
    seeds: Tensor | None,
    *,
    valid: Tensor | None = None,
    logits: bool = False,
    uniform: bool = False,
    prob: bool = True,
    log: bool = False,
    conflict: bool = True,
) -> Found:
    """One minimal diagnosis per pixel of `values` (b, n, pixels): drawn where there are `seeds`, else the likeliest.

    What is drawn at a pixel depends on its image's seed and on its place alone. `trust` is 1 - c(o) per channel.
    """
    b, n, pixels = values.shape
    work = torch.float64 if values.dtype == torch.float64 or sweep.levels > SINGLE_LEVELS else torch.float32
    small = torch.uint8 if sweep.candidates <= 256 else torch.int16
    leaf = torch.empty(b, pixels, dtype=small, device=values.device)
    sure = torch.float64 if values.dtype == torch.float64 else torch.float32
    found = Found(
        leaf,
        torch.empty(b, pixels, dtype=sure, device=values.device) if prob else None,
        torch.empty(b, pixels, dtype=torch.bool, device=values.device) if conflict else None,
    )
    if leaf.numel():
        block = min(BLOCK, 1 << (pixels.bit_length() - 1))
        _diagnose[(triton.cdiv(pixels, block), b)](
            as_read(values),
            trust.to(work),
            sweep.kids,
            sweep.allowed,
            leaf if valid is None else valid,
            leaf if seeds is None else seeds,
            leaf,
            leaf if found.prob is None else found.prob,
            leaf if found.conflict is None else found.conflict,
            n,
            sweep.top,
            len(sweep.allowed),
            pixels,
            *values.stride(),
            DEPTH=sweep.levels,
            WORK=tl.float64 if work == torch.float64 else tl.float32,
            READ=how_to_read(values),
            LOGITS=logits,
            UNIFORM=uniform,
            SAMPLE=seeds is not None,
            VALID=valid is not None,
            PRUNED=sweep.pruned,
            NOTHING=sweep.nothing,
            PROB=prob,
            LOG=log,
            CONFLICT=conflict,
            BLOCK=block,
            num_warps=WARPS,
            maxnreg=MORE_REGISTERS if prob else REGISTERS,
        )
    return found


def labels(sweep: Sweep, values: Tensor, leaf: Tensor) -> tuple[Tensor, Tensor]:
    """What was observed in probabilities (b, n, pixels), and the labels of the candidates taken (b, pixels)."""
    b, n, pixels = values.shape
    observed, revised = torch.empty(2, b, n, pixels, dtype=torch.bool, device=values.device)
    if observed.numel():
        _label[(triton.cdiv(pixels, LABELLED), b)](
            values,
            leaf,
            sweep.first,
            sweep.last,
            observed,
            revised,
            n,
            pixels,
            *values.stride(),
            BLOCK=LABELLED,
        )
    return observed, revised


def levels(layout: Layout) -> int:
    """How many concepts the longest path has."""
    depth = [1] * len(layout.order)
    for row, parent in enumerate(layout.parents):
        if parent != ROOT:
            depth[row] = depth[parent] + 1
    return max(depth)


@triton.jit
def _mixed(h):
    """A bijection of 32 bits that leaves no pattern (the finaliser of MurmurHash3)."""
    h ^= h >> 16
    h *= 0x85EBCA6B
    h ^= h >> 13
    h *= 0xC2B2AE35
    h ^= h >> 16
    return h


@triton.jit
def _drawn(chance, total, mine, WORK: tl.constexpr):
    """True with probability mine / total, by the upper 23 bits of `chance`; always if mine is all, never if it is 0."""
    number = ((chance >> 9) | 0x3F800000).to(tl.float32, bitcast=True).to(WORK)  # from 1 to below 2
    return tl.fma(number, total, -mine) < total


@triton.jit
def _ratio(x, observed, trust, beyond, LOGITS: tl.constexpr, UNIFORM: tl.constexpr):
    """r(o) = t / (1 - t) times `beyond` where the concept was observed, else (1 - t) / t, for t = confidence x trust,
    kept away from 0 and 1.
    """
    if UNIFORM:
        return tl.where(observed, beyond, 1.0) + x * 0
    else:
        if LOGITS:
            both = 1 + tl.exp(-tl.abs(x))  # t and 1 - t are taken times that
            normal = tl.maximum(trust, LEAST * both)
            away = tl.maximum(both - trust, LEAST * both)
        else:
            normal = tl.maximum(tl.abs(x - 0.5) * trust + 0.5 * trust, LEAST)
            away = tl.maximum(1 - normal, LEAST)
        # an inverse by the square of an inverse root: two instructions, where a division is many
        root = tl.rsqrt(tl.where(observed, away * (1 / beyond), normal))
        return tl.where(observed, normal, away) * (root * root)


@triton.jit
def _next(row, offset, trusts, at, n, step, READ: tl.constexpr):
    """The values two channels after `at`, and the trust of the next one; past the last, the last one's again."""
    row += tl.where(at + 2 < n, step, 0)
    return row, read(row + offset, READ), tl.load(trusts + tl.minimum(at + 1, n - 1))


@triton.jit
def _leaves(
    row,
    offset,
    trusts,
    allowed,
    n,
    step,
    members,
    at,
    leaf,
    coming,
    later,
    trust,
    count,
    chance,
    WORK: tl.constexpr,
    READ: tl.constexpr,
    LOGITS: tl.constexpr,
    UNIFORM: tl.constexpr,
    SAMPLE: tl.constexpr,
    PRUNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Siblings that are all leaves. If one of them was observed, those that were not are dominated in either case; if
    none was, all are alike. So one account serves both cases: an observed leaf weighs so much more that beside it the
    others vanish, to the last bit.
    """
    total = tl.zeros([BLOCK], WORK)
    chosen = tl.zeros([BLOCK], tl.int32)
    weight = tl.zeros([BLOCK], WORK)
    for _ in range(members):
        x = number(coming, READ, WORK)
        of_trust = trust
        coming = later
        row, later, trust = _next(row, offset, trusts, at, n, step, READ)
        at += 1
        observed = x > (0.0 if LOGITS else 0.5)
        count += observed.to(tl.int32)
        mine = _ratio(x, observed, of_trust, OBSERVED, LOGITS, UNIFORM)
        if PRUNED:
            mine = tl.where(tl.load(allowed + leaf) > 0, mine, 0.0)
        total += mine
        if SAMPLE:
            chance = chance * 1664525 + 1013904223
            take = _drawn(chance, total, mine, WORK)
        else:
            take = mine > weight
        chosen = tl.where(take, leaf, chosen)
        weight = tl.where(take, mine, weight)
        leaf += 1
    some = total > SOME
    scale = tl.where(some, 1 / OBSERVED, 1.0)
    return total * scale, chosen, weight * scale, some, row, at, leaf, coming, later, trust, count, chance


@triton.jit
def _siblings(
    row,
    offset,
    kids,
    trusts,
    allowed,
    n,
    step,
    members,
    at,
    leaf,
    coming,
    later,
    trust,
    count,
    chance,
    LEVEL: tl.constexpr,
    DEPTH: tl.constexpr,
    WORK: tl.constexpr,
    READ: tl.constexpr,
    LOGITS: tl.constexpr,
    UNIFORM: tl.constexpr,
    SAMPLE: tl.constexpr,
    PRUNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The `members` siblings from channel `at` on, and all that is below them; `coming` and `later` hold the
    values of that channel and of the next, which start at `row`.

    Returns for both cases sums, choices and their weights; the length of a full chain, 0 if there is none; and how far
    the sweep has come.
    """
    sum0 = tl.zeros([BLOCK], WORK)
    sum1 = tl.zeros([BLOCK], WORK)
    leaf0 = tl.zeros([BLOCK], tl.int32)
    leaf1 = tl.zeros([BLOCK], tl.int32)
    weight0 = tl.zeros([BLOCK], WORK)
    weight1 = tl.zeros([BLOCK], WORK)
    full = tl.zeros([BLOCK], tl.int32)
    for _ in range(members):
        x = number(coming, READ, WORK)
        own_kids = tl.load(kids + at)
        observed = x > (0.0 if LOGITS else 0.5)
        count += observed.to(tl.int32)
        ratio = _ratio(x, observed, trust, 1.0, LOGITS, UNIFORM)
        coming = later
        row, later, trust = _next(row, offset, trusts, at, n, step, READ)
        at += 1
        # of a leaf; children, if there are any, change all of it
        mine0 = ratio
        if PRUNED:
            is_allowed = tl.load(allowed + leaf) > 0
            mine0 = tl.where((own_kids > 0) | is_allowed, ratio, 0.0)
        mine1 = tl.where(observed, mine0, 0.0)
        chain = (mine1 > 0).to(tl.int32)
        chosen0 = tl.zeros([BLOCK], tl.int32) + leaf
        chosen1 = chosen0
        best0 = mine0
        best1 = mine1
        if LEVEL + 2 == DEPTH:
            if own_kids > 0:
                sums, chosen0, best0, some, row, at, leaf, coming, later, trust, count, chance = _leaves(
                    row,
                    offset,
                    trusts,
                    allowed,
                    n,
                    step,
                    own_kids,
                    at,
                    leaf,
                    coming,
                    later,
                    trust,
                    count,
                    chance,
                    WORK,
                    READ,
                    LOGITS,
                    UNIFORM,
                    SAMPLE,
                    PRUNED,
                    BLOCK,
                )
                mine0 = ratio * sums
                best0 = ratio * best0
                minimal = some | observed
                mine1 = tl.where(minimal, mine0, 0.0)
                best1 = tl.where(minimal, best0, 0.0)
                chosen1 = chosen0
                chain = tl.where(some & observed, 2, 0)
            else:
                leaf += 1
        elif LEVEL + 1 < DEPTH:
            if own_kids > 0:
                a0, a1, i0, i1, w0, w1, chain, row, at, leaf, coming, later, trust, count, chance = _siblings(
                    row,
                    offset,
                    kids,
                    trusts,
                    allowed,
                    n,
                    step,
                    own_kids,
                    at,
                    leaf,
                    coming,
                    later,
                    trust,
                    count,
                    chance,
                    LEVEL + 1,
                    DEPTH,
                    WORK,
                    READ,
                    LOGITS,
                    UNIFORM,
                    SAMPLE,
                    PRUNED,
                    BLOCK,
                )
                some = chain > 0
                dominating = some | (observed == 0)
                mine0 = ratio * tl.where(some, a1, a0)
                mine1 = ratio * tl.where(dominating, a1, a0)
                chosen0 = tl.where(some, i1, i0)
                chosen1 = tl.where(dominating, i1, i0)
                best0 = ratio * tl.where(some, w1, w0)
                best1 = ratio * tl.where(dominating, w1, w0)
                chain = tl.where(some & observed, chain + 1, 0)
            else:
                leaf += 1
        else:
            leaf += 1
        full = tl.maximum(full, chain)
        sum0 += mine0
        sum1 += mine1
        if SAMPLE:
            chance = chance * 1664525 + 1013904223
            take0 = _drawn(chance, sum0, mine0, WORK)
            take1 = _drawn(chance, sum1, mine1, WORK)
        else:
            take0 = best0 > weight0
            take1 = best1 > weight1
        leaf0 = tl.where(take0, chosen0, leaf0)
        leaf1 = tl.where(take1, chosen1, leaf1)
        weight0 = tl.where(take0, best0, weight0)
        weight1 = tl.where(take1, best1, weight1)
    return sum0, sum1, leaf0, leaf1, weight0, weight1, full, row, at, leaf, coming, later, trust, count, chance


@triton.jit
def _diagnose(
    values,
    trusts,
    kids,
    allowed,
    valid,
    seeds,
    out_leaf,
    out_prob,
    out_conflict,
    n,
    top,
    leaves,
    pixels,
    image_step,
    channel_step,
    pixel_step,
    DEPTH: tl.constexpr,
    WORK: tl.constexpr,
    READ: tl.constexpr,
    LOGITS: tl.constexpr,
    UNIFORM: tl.constexpr,
    SAMPLE: tl.constexpr,
    VALID: tl.constexpr,
    PRUNED: tl.constexpr,
    NOTHING: tl.constexpr,
    PROB: tl.constexpr,
    LOG: tl.constexpr,
    CONFLICT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(1)
    zero = image * 0
    # the last block reaches back to pixels that another program has as well: it comes to the same there
    start = tl.minimum(tl.program_id(0) * BLOCK, pixels - BLOCK)
    at_pixel = start + tl.arange(0, BLOCK)
    row = values + image.to(tl.int64) * image_step + start.to(tl.int64) * pixel_step
    offset = tl.arange(0, BLOCK) * pixel_step
    chance = at_pixel.to(tl.uint32)
    if SAMPLE:
        seed = tl.load(seeds + image)
        chance = _mixed(chance ^ (seed & 0xFFFFFFFF).to(tl.uint32))
        chance = _mixed(chance ^ ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32))
    coming = read(row + offset, READ)
    row += tl.where(n > 1, channel_step, 0)
    later = read(row + offset, READ)
    trust = tl.load(trusts)
    count = tl.zeros([BLOCK], tl.int32)
    sum0, sum1, leaf0, leaf1, weight0, weight1, full, row, _at, _leaf, coming, later, trust, count, chance = _siblings(
        row,
        offset,
        kids,
        trusts,
        allowed,
        n,
        channel_step,
        top,
        zero,
        zero,
        coming,
        later,
        trust,
        count,
        chance,
        0,
        DEPTH,
        WORK,
        READ,
        LOGITS,
        UNIFORM,
        SAMPLE,
        PRUNED,
        BLOCK,
    )
    some = full > 0
    consistent = some & (full == count)
    if NOTHING:
        # the free root is dominated, and "no concept at all", of weight 1, is one more candidate where nothing is full
        none = tl.where(some, 0.0, 1.0).to(WORK)
        total = sum1 + none
        if SAMPLE:
            take = _drawn(chance * 1664525 + 1013904223, total, none, WORK)
        else:
            take = none > weight1
        chosen = tl.where(take, leaves, leaf1)
        weight = tl.where(take, none, weight1)
        consistent = consistent | (count == 0)
    else:
        total = tl.where(some, sum1, sum0)
        chosen = tl.where(some, leaf1, leaf0)
        weight = tl.where(some, weight1, weight0)
    at = image.to(tl.int64) * pixels + at_pixel
    tl.store(out_leaf + at, chosen.to(out_leaf.dtype.element_ty))
    counts = at_pixel >= 0
    if VALID:
        counts = tl.load(valid + at) != 0
    if PROB:
        prob = tl.minimum(weight / total, 1.0)
        if LOG:
            prob = tl.where(counts, tl.log(prob), 0.0)
        else:
            prob = tl.where(counts, prob, 1.0)
        tl.store(out_prob + at, prob.to(out_prob.dtype.element_ty))
    if CONFLICT:
        conflict = counts & (consistent == 0)
        tl.store(out_conflict + at, conflict.to(out_conflict.dtype.element_ty))


@triton.jit
def _label(
    values,
    leaves,
    first,
    last,
    out_observed,
    out_revised,
    n,
    pixels,
    image_step,
    channel_step,
    pixel_step,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < pixels
    leaf = tl.load(leaves + image * pixels + pixel, mask=inside, other=0).to(tl.int32)
    row = values + image * image_step
    at = image * n * pixels
    channel = tl.program_id(0) * 0
    for _ in range(n):
        x = tl.load(row + pixel * pixel_step, mask=inside, other=0.0)
        on_path = (leaf >= tl.load(first + channel)) & (leaf < tl.load(last + channel))
        tl.store(out_observed + at + pixel, x > 0.5, mask=inside)
        tl.store(out_revised + at + pixel, on_path, mask=inside)
        row += channel_step
        at += pixels
        channel += 1
