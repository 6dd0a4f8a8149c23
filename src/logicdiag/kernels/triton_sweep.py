"""The sweep through the tree that `triton_paths` makes at each block of pixels; see there what it hands up."""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_read import number, read

LEAST = tl.constexpr(1e-6)  # of a probability of normality, and of its complement
OBSERVED = tl.constexpr(2.0**84)  # times the least ratio, far beyond the sum of the greatest
SOME = tl.constexpr(2.0**50)


@triton.jit
def mixed(h):
    """A bijection of 32 bits that leaves no pattern (the finaliser of MurmurHash3)."""
    h ^= h >> 16
    h *= 0x85EBCA6B
    h ^= h >> 13
    h *= 0xC2B2AE35
    h ^= h >> 16
    return h


@triton.jit
def turned(chance):
    """The next of 32 random bits, of which the upper ones are good."""
    return chance * 1664525 + 1013904223


@triton.jit
def drawn(chance, total, mine, WORK: tl.constexpr):
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
    none was, all are alike. So one account serves both cases: an observed leaf weighs so much more that no draw can
    take another, and that the others' weight is less than rounding.
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
            chance = turned(chance)
            take = drawn(chance, total, mine, WORK)
        else:
            take = mine > weight
        chosen = tl.where(take, leaf, chosen)
        weight = tl.where(take, mine, weight)
        leaf += 1
    some = total > SOME
    scale = tl.where(some, 1 / OBSERVED, 1.0)
    return total * scale, chosen, weight * scale, some, row, at, leaf, coming, later, trust, count, chance


@triton.jit
def siblings(
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
                a0, a1, i0, i1, w0, w1, chain, row, at, leaf, coming, later, trust, count, chance = siblings(
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
            chance = turned(chance)
            take0 = drawn(chance, sum0, mine0, WORK)
            take1 = drawn(chance, sum1, mine1, WORK)
        else:
            take0 = best0 > weight0
            take1 = best1 > weight1
        leaf0 = tl.where(take0, chosen0, leaf0)
        leaf1 = tl.where(take1, chosen1, leaf1)
        weight0 = tl.where(take0, best0, weight0)
        weight1 = tl.where(take1, best1, weight1)
    return sum0, sum1, leaf0, leaf1, weight0, weight1, full, row, at, leaf, coming, later, trust, count, chance
