"""The kernels that `triton_norm` launches; see there why they are as they are.

Memory holds (pixel, channel), and pixels are rows here. A program takes `CHANNELS` channels, and `ROWS` rows at a time
of those that are its own: `share` rows if it sums, `each` if it writes.
"""

from __future__ import annotations

import triton
import triton.language as tl

SIZES = ("groups", "rows", "share", "shares", "each", "chunks")
"""Arguments for whose values nothing is compiled anew."""


@triton.jit
def _channels(chunks, CHANNELS: tl.constexpr):
    """Those of this program. Programs for the same rows follow each other: their channels share lines of memory."""
    return tl.program_id(0) % chunks * CHANNELS + tl.arange(0, CHANNELS)


@triton.jit
def _tile(first, end, channel, channels, ROWS: tl.constexpr):
    """Rows from `first` on: where they lie, and which of them there are."""
    row = first + tl.arange(0, ROWS)[:, None]
    return row * channels + channel[None, :], (row < end) & (channel < channels)[None, :]


@triton.jit
def _of_all(partial, channel, channels, shares, SHARES: tl.constexpr):
    """What the shares left, two values for each channel."""
    at, there = _tile(0, shares, channel, channels, SHARES)
    first = tl.load(partial + at, mask=there, other=0.0)
    return first, tl.load(partial + shares * channels + at, mask=there, other=0.0)


@triton.jit
def _follow(running, now, momentum, known):
    before = tl.load(running, mask=known, other=0.0)
    tl.store(running, before + momentum * (now - before), mask=known)


@triton.jit
def _through(grad, y, ACT: tl.constexpr):
    """The gradient before the activation of y."""
    if ACT != "none":
        grad = tl.where(y <= 0, 0.0, grad)
    if ACT == "relu6":
        grad = tl.where(y >= 6, 0.0, grad)
    return grad


@triton.jit(do_not_specialize=SIZES)
def _statistics(
    x,
    partial,
    groups,
    rows,
    share,
    shares,
    chunks,
    UNIT: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """The mean of a share, and the sum of the squared distances from it."""
    channels = groups * UNIT
    channel = _channels(chunks, CHANNELS)
    index = tl.program_id(0) // chunks
    start = index * share
    end = tl.minimum(start + share, rows)
    origin = tl.load(x + start * channels + channel, mask=channel < channels, other=0.0).to(tl.float32)
    sums = tl.zeros([ROWS, CHANNELS], tl.float32)
    squares = tl.zeros([ROWS, CHANNELS], tl.float32)
    for first in range(0, share, ROWS * AHEAD):
        for i in tl.static_range(AHEAD):
            at, there = _tile(start + first + i * ROWS, end, channel, channels, ROWS)
            value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
            apart = tl.where(there, value - origin[None, :], 0.0)
            sums += apart
            squares += apart * apart
    mean = tl.sum(sums, 0) / (end - start)
    left = tl.maximum(tl.sum(squares, 0) - mean * mean * (end - start), 0.0)
    mine = partial + index * channels + channel
    tl.store(mine, origin + mean, mask=channel < channels)
    tl.store(mine + shares * channels, left, mask=channel < channels)


@triton.jit(do_not_specialize=SIZES)
def _normalise(
    x,
    partial,
    weight,
    bias,
    running_mean,
    running_var,
    batches,
    kept,
    out,
    momentum,
    eps,
    groups,
    rows,
    share,
    shares,
    chunks,
    each,
    TRAIN: tl.constexpr,
    ACT: tl.constexpr,
    SHARES: tl.constexpr,
    UNIT: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
):
    channels = groups * UNIT
    channel = _channels(chunks, CHANNELS)
    known = channel < channels
    start = tl.program_id(0) // chunks * each
    if TRAIN:
        means, squares = _of_all(partial, channel, channels, shares, SHARES)
        index = tl.arange(0, SHARES)[:, None]
        count = tl.maximum(tl.minimum(share, rows - index * share), 0).to(tl.float32)
        mean = tl.sum(count * means, 0) / rows
        apart = means - mean[None, :]
        left = tl.sum(squares + count * apart * apart, 0)
        inverse = tl.rsqrt(left / rows + eps)
        if start == 0:
            tl.store(kept + channel, mean, mask=known)
            tl.store(kept + channels + channel, inverse, mask=known)
            _follow(running_mean + channel, mean, momentum, known)
            _follow(running_var + channel, left / (rows - 1), momentum, known)
        if tl.program_id(0) == 0:
            tl.store(batches, tl.load(batches) + 1)
    else:
        mean = tl.load(running_mean + channel, mask=known, other=0.0)
        inverse = tl.rsqrt(tl.load(running_var + channel, mask=known, other=0.0) + eps)
    scale = (inverse * tl.load(weight + channel, mask=known, other=0.0))[None, :]
    shift = tl.load(bias + channel, mask=known, other=0.0)[None, :]
    for first in range(0, each, ROWS):
        at, there = _tile(start + first, tl.minimum(start + each, rows), channel, channels, ROWS)
        y = (tl.load(x + at, mask=there, other=0.0).to(tl.float32) - mean[None, :]) * scale + shift
        if ACT != "none":
            y = tl.where(y < 0, 0.0, y)  # and not the maximum, for what is not a number is to stay so
        if ACT == "relu6":
            y = tl.where(y > 6, 6.0, y)
        tl.store(out + at, y.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=SIZES)
def _sums(
    x,
    grad,
    kept,
    weight,
    bias,
    partial,
    groups,
    rows,
    share,
    shares,
    chunks,
    ACT: tl.constexpr,
    UNIT: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Of a share: the gradient, and the gradient times the normalised input."""
    channels = groups * UNIT
    channel = _channels(chunks, CHANNELS)
    known = channel < channels
    index = tl.program_id(0) // chunks
    start = index * share
    mean = tl.load(kept + channel, mask=known, other=0.0)[None, :]
    inverse = tl.load(kept + channels + channel, mask=known, other=0.0)
    scale = (inverse * tl.load(weight + channel, mask=known, other=0.0))[None, :]
    shift = tl.load(bias + channel, mask=known, other=0.0)[None, :]
    sums = tl.zeros([ROWS, CHANNELS], tl.float32)
    products = tl.zeros([ROWS, CHANNELS], tl.float32)
    for first in range(0, share, ROWS * AHEAD):
        for i in tl.static_range(AHEAD):
            end = tl.minimum(start + share, rows)
            at, there = _tile(start + first + i * ROWS, end, channel, channels, ROWS)
            centred = tl.load(x + at, mask=there, other=0.0).to(tl.float32) - mean
            given = tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
            given = _through(given, centred * scale + shift, ACT)
            sums += given
            products += given * centred
    mine = partial + index * channels + channel
    tl.store(mine, tl.sum(products, 0) * inverse, mask=known)
    tl.store(mine + shares * channels, tl.sum(sums, 0), mask=known)


@triton.jit(do_not_specialize=SIZES)
def _gradient(
    x,
    grad,
    kept,
    weight,
    bias,
    partial,
    of_both,
    out,
    groups,
    rows,
    share,
    shares,
    chunks,
    each,
    ACT: tl.constexpr,
    SHARES: tl.constexpr,
    UNIT: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
):
    channels = groups * UNIT
    channel = _channels(chunks, CHANNELS)
    known = channel < channels
    start = tl.program_id(0) // chunks * each
    products, sums = _of_all(partial, channel, channels, shares, SHARES)
    of_weight, of_bias = tl.sum(products, 0), tl.sum(sums, 0)
    if start == 0:
        tl.store(of_both + channel, of_weight, mask=known)
        tl.store(of_both + channels + channel, of_bias, mask=known)
    mean = tl.load(kept + channel, mask=known, other=0.0)[None, :]
    inverse = tl.load(kept + channels + channel, mask=known, other=0.0)
    scale = (inverse * tl.load(weight + channel, mask=known, other=0.0))[None, :]
    shift = tl.load(bias + channel, mask=known, other=0.0)[None, :]
    slope = (of_weight * inverse / rows)[None, :]
    common = (of_bias / rows)[None, :]
    for first in range(0, each, ROWS):
        at, there = _tile(start + first, tl.minimum(start + each, rows), channel, channels, ROWS)
        centred = tl.load(x + at, mask=there, other=0.0).to(tl.float32) - mean
        given = tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
        given = _through(given, centred * scale + shift, ACT)
        tl.store(out + at, ((given - common - centred * slope) * scale).to(out.dtype.element_ty), mask=there)
