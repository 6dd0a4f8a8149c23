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

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tables import Found, Sweep
from .triton_read import as_read, how_to_read, narrow, read
from .triton_sweep import drawn, mixed, siblings, turned

SINGLE_LEVELS = 5
"""Products of more ratios than this, each up to a million, are taken in float64."""
BLOCK, WARPS = 128, 1
LABELLED = 1024
REGISTERS, MORE_REGISTERS = 64, 80
"""Fewer than the compiler would take, so that more programs hide each other's reads; more with more to hand back."""


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
    values = narrow(values)
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
    values = narrow(values)
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
        chance = mixed(chance ^ (seed & 0xFFFFFFFF).to(tl.uint32))
        chance = mixed(chance ^ ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32))
    coming = read(row + offset, READ)
    row += tl.where(n > 1, channel_step, 0)
    later = read(row + offset, READ)
    trust = tl.load(trusts)
    count = tl.zeros([BLOCK], tl.int32)
    sum0, sum1, leaf0, leaf1, weight0, weight1, full, row, _at, _leaf, coming, later, trust, count, chance = siblings(
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
            take = drawn(turned(chance), total, none, WORK)
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
