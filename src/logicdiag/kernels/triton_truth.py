"""Truth degrees of C, D and E over a batch, for GPUs: every sum over pixels in one pass over the predictions.

One program takes a group of siblings, and their parent, through its share of the pixels of an image. With the paper's
connectives the errors are products, so powers are taken once per concept: the products of siblings are the sums of E
(fact 5 of `docs/semantics.md`), those with "not the parent" the sums of C; the largest sibling gives D. Groups of up to
15 are multiplied pair by pair in registers, larger ones on the matrix units. Shares are added in a fixed order, so the
same input gives the same degrees.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tables import FEW, Gauge
from .triton_read import as_read, how_to_read, narrow, number, read

BLOCK, WARPS = 128, 4
"""A pixel a thread. Neighbours share what they read at odd places, so blocks are wider than a warp."""
PROGRAMS = 1056
"""Of one launch: enough to fill a GPU, and few enough that adding up their sums takes no time."""
COLUMNS = 4


def sums_of_errors(
    gauge: Gauge, values: Tensor, power: float, valid: Tensor | None = None, logits: bool = False
) -> Tensor:
    """All sums of error ** power over the valid pixels of `values` (b, n, pixels)."""
    values = narrow(values)
    b, _, pixels = values.shape
    if not b * pixels:
        return torch.zeros(gauge.sums, dtype=torch.float64, device=values.device)
    block = min(BLOCK, 1 << (pixels.bit_length() - 1))
    shares = [max(1, min(PROGRAMS // (b * len(groups.channel)), pixels // block)) for groups in gauge.groups]
    out = torch.zeros(b * max(shares), gauge.sums, dtype=torch.float32, device=values.device)
    offset = 0
    for groups, share in zip(gauge.groups, shares, strict=True):
        many = groups.size > FEW
        kernel = _add_many if many else _add_few
        kernel[(share, len(groups.channel), b)](
            as_read(values),
            out if valid is None else valid,
            groups.channel,
            out,
            pixels,
            *values.stride(),
            gauge.sums,
            offset,
            groups.sums,
            float(power),
            SIZE=groups.size,
            POWER=int(power) if power == int(power) else 0,
            READ=how_to_read(values),
            LOGITS=logits,
            VALID=valid is not None,
            BLOCK=64 if many else block,
            num_warps=WARPS,
        )
        offset += len(groups.channel) * groups.sums
    total = torch.empty(gauge.sums, dtype=torch.float64, device=values.device)
    _total[(triton.cdiv(gauge.sums, COLUMNS),)](
        out, total, len(out), gauge.sums, ROWS=max(16, min(1024, triton.next_power_of_2(len(out)))), COLUMNS=COLUMNS
    )
    return total


def degrees_of(gauge: Gauge, sums: Tensor, count: Tensor, power: float, families: str) -> tuple[Tensor, Tensor]:
    """The truth degrees (3, n) of C, D and E, and their mean over the families in force."""
    n, most = gauge.exclusion.shape
    degrees = torch.empty(3, n, dtype=torch.float32, device=sums.device)
    trust = torch.empty(n, dtype=torch.float32, device=sums.device)
    _degrees[(n,)](
        sums,
        count,
        gauge.composition,
        gauge.decomposition,
        gauge.exclusion,
        degrees,
        trust,
        n,
        most,
        1 / power,
        C="C" in families,
        D="D" in families,
        E="E" in families,
        BLOCK=triton.next_power_of_2(most),
        num_warps=1,
    )
    return degrees, trust


@triton.jit
def _powered(x, power, POWER: tl.constexpr):
    """x ** power; POWER is the power where it is a whole number up to 6, else 0."""
    if POWER == 0:
        return tl.where(x > 0, tl.exp2(power * tl.log2(tl.maximum(x, 1e-37))), 0.0)
    elif POWER == 1:
        return x
    elif POWER == 2:
        return x * x
    elif POWER == 3:
        return x * x * x
    elif POWER == 4:
        square = x * x
        return square * square
    elif POWER == 5:
        square = x * x
        return square * square * x
    else:
        cube = x * x * x
        return cube * cube


@triton.jit
def _probability(x, READ: tl.constexpr, LOGITS: tl.constexpr):
    """Of what `read` gives, in float32. The sigmoid is the square of an inverse root, which is one instruction where a
    division is many.
    """
    x = number(x, READ, tl.float32)
    if LOGITS:
        root = tl.rsqrt(1 + tl.exp(-tl.maximum(x, -80.0)))
        x = root * root
    return x


@triton.jit
def _read(rows, at, READ: tl.constexpr, SIZE: tl.constexpr):
    """The values of all siblings, and of their parent, at some pixels."""
    values = ()
    for i in tl.static_range(SIZE + 1):
        values = values + (read(rows[i] + at, READ),)
    return values


@triton.jit
def _counted(valid, pixel, VALID: tl.constexpr):
    """1 where a pixel counts, else 0."""
    if VALID:
        return tl.load(valid + pixel).to(tl.float32)
    else:
        return (pixel >= 0).to(tl.float32)


@triton.jit
def _added(
    sums,
    values,
    counts,
    power,
    SIZE: tl.constexpr,
    POWER: tl.constexpr,
    READ: tl.constexpr,
    LOGITS: tl.constexpr,
    WEIGHED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sums with some more pixels in them."""
    parent = _probability(values[SIZE], READ, LOGITS)
    most = tl.zeros([BLOCK], tl.float32)
    powers = ()
    for i in tl.static_range(SIZE):
        x = _probability(values[i], READ, LOGITS)
        if WEIGHED:
            x *= counts
        most = tl.maximum(most, x)
        powers = powers + (_powered(x, power, POWER),)
    without = _powered(1 - parent, power, POWER)
    if WEIGHED:
        parent *= counts
    now = (sums[0] + _powered(parent * (1 - most), power, POWER),)
    for i in tl.static_range(SIZE):
        now = now + (sums[1 + i * (i + 1) // 2] + powers[i] * without,)
        for j in tl.static_range(i):
            now = now + (sums[2 + i * (i + 1) // 2 + j] + powers[i] * powers[j],)
    return now


@triton.jit
def _add_few(
    values,
    valid,
    channels,
    out,
    pixels,
    image_step,
    channel_step,
    pixel_step,
    all_sums,
    offset,
    own_sums,
    power,
    SIZE: tl.constexpr,
    POWER: tl.constexpr,
    READ: tl.constexpr,
    LOGITS: tl.constexpr,
    VALID: tl.constexpr,
    BLOCK: tl.constexpr,
):
    share = tl.program_id(0)
    shares = tl.num_programs(0)
    group = tl.program_id(1)
    image = tl.program_id(2).to(tl.int64)
    SUMS: tl.constexpr = 1 + SIZE * (SIZE + 1) // 2
    rows = ()
    for i in tl.static_range(SIZE + 1):
        channel = tl.load(channels + group * (SIZE + 1) + i).to(tl.int64)
        rows = rows + (values + image * image_step + channel * channel_step,)
    sums = ()
    for _i in tl.static_range(SUMS):
        sums = sums + (tl.zeros([BLOCK], tl.float32),)
    some = tl.arange(0, BLOCK)
    whole = pixels // BLOCK  # there are no more shares than these
    # two accounts of what is read, by turns: while one is added up, the other comes in
    here = _read(rows, (share * BLOCK + some) * pixel_step, READ, SIZE)
    there = _read(rows, (tl.minimum(share + shares, whole - 1) * BLOCK + some) * pixel_step, READ, SIZE)
    own_valid = valid + image * pixels
    for turn in range(share, whole, 2 * shares):
        counts = _counted(own_valid, turn * BLOCK + some, VALID)
        sums = _added(sums, here, counts, power, SIZE, POWER, READ, LOGITS, VALID, BLOCK)
        here = _read(rows, (tl.minimum(turn + 2 * shares, whole - 1) * BLOCK + some) * pixel_step, READ, SIZE)
        if turn + shares < whole:
            counts = _counted(own_valid, (turn + shares) * BLOCK + some, VALID)
            sums = _added(sums, there, counts, power, SIZE, POWER, READ, LOGITS, VALID, BLOCK)
        there = _read(rows, (tl.minimum(turn + 3 * shares, whole - 1) * BLOCK + some) * pixel_step, READ, SIZE)
    if share == 0:
        # the last pixels, with others before them that were counted already
        pixel = pixels - BLOCK + some
        counts = (pixel >= whole * BLOCK).to(tl.float32) * _counted(own_valid, pixel, VALID)
        rest = _read(rows, pixel * pixel_step, READ, SIZE)
        sums = _added(sums, rest, counts, power, SIZE, POWER, READ, LOGITS, True, BLOCK)
    start = out + (image * shares + share) * all_sums + offset + group * own_sums
    for k in tl.static_range(SUMS):
        tl.store(start + k, tl.sum(sums[k], 0))


@triton.jit
def _rounded(x):
    """To the 11 bits that matrix units read of a float32, up or down to the nearest: they would cut the rest off."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x1000) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def _add_many(
    values,
    valid,
    channels,
    out,
    pixels,
    image_step,
    channel_step,
    pixel_step,
    all_sums,
    offset,
    own_sums,
    power,
    SIZE: tl.constexpr,
    POWER: tl.constexpr,
    READ: tl.constexpr,
    LOGITS: tl.constexpr,
    VALID: tl.constexpr,
    BLOCK: tl.constexpr,
):
    share = tl.program_id(0)
    group = tl.program_id(1)
    image = tl.program_id(2).to(tl.int64)
    ROWS: tl.constexpr = SIZE + 1
    rows = tl.arange(0, ROWS)
    channel = tl.load(channels + group * ROWS + rows)[:, None].to(tl.int64)
    start = values + image * image_step + channel * channel_step
    is_parent = rows[:, None] == SIZE
    products = tl.zeros([ROWS, ROWS], tl.float32)
    decomposition = tl.zeros([BLOCK], tl.float32)
    for turn in range(share, tl.cdiv(pixels, BLOCK), tl.num_programs(0)):
        pixel = turn * BLOCK + tl.arange(0, BLOCK)
        counts = (pixel < pixels).to(tl.float32)
        if VALID:
            counts = tl.load(valid + image * pixels + pixel, mask=pixel < pixels, other=0).to(tl.float32)
        x = _probability(read(start + (tl.minimum(pixel, pixels - 1) * pixel_step)[None, :], READ), READ, LOGITS)
        parent = tl.sum(tl.where(is_parent, x, 0.0), 0)
        error = parent * (1 - tl.max(tl.where(is_parent, 0.0, x), 0)) * counts
        decomposition += _powered(error, power, POWER)
        factor = _rounded(_powered(tl.where(is_parent, 1 - x, x) * counts[None, :], power, POWER))
        products = tl.dot(factor, tl.trans(factor), products, input_precision="tf32")
    own = out + (image * tl.num_programs(0) + share) * all_sums + offset + group * own_sums
    tl.store(own, tl.sum(decomposition, 0))
    tl.store(own + 1 + rows[:, None] * ROWS + tl.arange(0, ROWS)[None, :], products)


@triton.jit
def _total(shares, total, count, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The sum of all shares, in float64."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float64)
    for first in range(0, count, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(shares + row.to(tl.int64) * width + column, mask=(row < count) & (column < width), other=0.0)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(total + column, tl.sum(sums, 0), mask=column < width)


@triton.jit
def _mean(sums, at, count, root):
    """The power mean of the errors whose sums are at some places; 0 where -1."""
    mean = (tl.load(sums + at, mask=at >= 0, other=0.0) / count).to(tl.float32)
    return tl.where(mean > 0, tl.exp2(root * tl.log2(tl.maximum(mean, 1e-37))), 0.0)


@triton.jit
def _degrees(
    sums,
    counts,
    composition,
    decomposition,
    exclusion,
    out,
    trust,
    n,
    most,
    root,
    C: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    BLOCK: tl.constexpr,
):
    node = tl.program_id(0)
    count = tl.maximum(tl.load(counts).to(tl.float64), 1.0)
    one = tl.arange(0, 1)
    c = 1 - tl.sum(_mean(sums, tl.load(composition + node + one), count, root), 0)
    d = 1 - tl.sum(_mean(sums, tl.load(decomposition + node + one), count, root), 0)
    place = tl.arange(0, BLOCK)
    at = tl.load(exclusion + node * most + place, mask=place < most, other=-1)
    siblings = tl.maximum(tl.sum((at >= 0).to(tl.int32), 0), 1)
    e = 1 - tl.sum(_mean(sums, at, count, root), 0) / siblings
    tl.store(out + node, c)
    tl.store(out + n + node, d)
    tl.store(out + 2 * n + node, e)
    total = 0.0
    if C:
        total += c
    if D:
        total += d
    if E:
        total += e
    families: tl.constexpr = C + D + E
    tl.store(trust + node, total / families)
