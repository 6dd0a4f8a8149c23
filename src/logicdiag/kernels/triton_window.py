"""The kernels that `triton_depthwise` launches; see there why they are as they are.

Memory holds (image, row, column, channel). A program takes `CHANNELS` channels and `PIXELS` columns of `ROWS` rows
each. A band is such a set of rows, and columns are counted through all bands of all images. Programs for the same
columns follow each other, because their channels share lines of memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

SIZES = (
    "groups",
    "height",
    "width",
    "out_height",
    "out_width",
    "bands",
    "across",
    "columns",
    "share",
    "spacing",
    "dilation",
    "top",
    "left",
    "chunks",
    "first_tap",
    "tap_step",
)
"""Arguments for whose values nothing is compiled anew."""


@triton.jit
def _place(column, across, bands):
    """Image, band and column of the band, of a column counted through all of them."""
    band = column // across
    return band // bands, band % bands, column % across


@triton.jit
def _first_row(band, spacing, ROWS: tl.constexpr):
    """Of the rows of a band, which lie `spacing` apart: the bands between two of them have the others."""
    return band // spacing * (ROWS * spacing) + band % spacing


@triton.jit
def _every(taps, step, channel, channels, HEIGHT: tl.constexpr):
    """The weights of a column of the window, `step` taps from one to the next."""
    found = ()
    for k in tl.static_range(HEIGHT):
        at = taps + k * step * channels + channel
        found = found + (tl.load(at, mask=channel < channels, other=0.0).to(tl.float32),)
    return found


@triton.jit
def _zeros(COUNT: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    found = ()
    for _ in tl.static_range(COUNT):
        found = found + (tl.zeros([PIXELS, CHANNELS], tl.float32),)
    return found


@triton.jit
def _added(sums, INDEX: tl.constexpr, value, factor):
    """The sums with value x factor added to one of them."""
    return sums[:INDEX] + (tl.fma(value, tl.broadcast_to(factor, value.shape), sums[INDEX]),) + sums[INDEX + 1 :]


@triton.jit(do_not_specialize=SIZES)
def _gathered(
    x,
    taps,
    out,
    groups,
    height,
    width,
    out_height,
    out_width,
    bands,
    columns,
    spacing,
    dilation,
    top,
    left,
    chunks,
    first_tap,
    tap_step,
    UNIT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    MEET: tl.constexpr,
    ROWS: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Outputs are sums over the window in the input. Row r of a band sees in tap k what row r + 1 sees in k - MEET."""
    program = tl.program_id(0)
    channels = groups * UNIT
    channel = (program % chunks * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    column = (program // chunks * PIXELS + tl.arange(0, PIXELS))[:, None]
    image, band, out_x = _place(column, out_width, bands)
    out_y = _first_row(band, spacing, ROWS)
    y = out_y * STRIDE - top
    inside = (column < columns) & (channel < channels)
    sums = _zeros(ROWS, PIXELS, CHANNELS)
    for i in tl.static_range(WIDTH):
        at = out_x * STRIDE - left + i * dilation
        seen = inside & (at >= 0) & (at < width)
        here = x + (((image * height + y) * width + at) * channels + channel)
        weights = _every(taps + (first_tap + i * tap_step) * channels, WIDTH * tap_step, channel, channels, HEIGHT)
        for j in tl.static_range((ROWS - 1) * MEET + HEIGHT):
            row = y + j * dilation
            value = tl.load(
                here + j * dilation * width * channels, mask=seen & (row >= 0) & (row < height), other=0.0
            ).to(tl.float32)
            for r in tl.static_range(ROWS):
                if j - r * MEET >= 0 and j - r * MEET < HEIGHT:
                    sums = _added(sums, r, value, weights[j - r * MEET])
    there = out + (((image * out_height + out_y) * out_width + out_x) * channels + channel)
    for r in tl.static_range(ROWS):
        tl.store(
            there + r * spacing * out_width * channels,
            sums[r].to(out.dtype.element_ty),
            mask=inside & (out_y + r * spacing < out_height),
        )


@triton.jit(do_not_specialize=SIZES)
def _spread_out(
    grad,
    taps,
    out,
    groups,
    height,
    width,
    out_height,
    out_width,
    bands,
    across,
    columns,
    top,
    left,
    chunks,
    UNIT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    DILATION: tl.constexpr,
    ROWS: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """The gradient of the input of a convolution with a stride, of whose taps each pixel was seen by some only.

    Bands start with the padding, and so do columns, which are `STRIDE` pixels wide here: then the same taps have seen
    row r of a band, and pixel i of a column, everywhere.
    """
    program = tl.program_id(0)
    channels = groups * UNIT
    channel = (program % chunks * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    column = (program // chunks * PIXELS + tl.arange(0, PIXELS))[:, None]
    image, band, x = _place(column, across, bands)
    inside = (column < columns) & (channel < channels)
    out_y = band * (ROWS // STRIDE)
    y = band * ROWS - top
    for i in tl.static_range(STRIDE):
        sums = _zeros(ROWS, PIXELS, CHANNELS)
        for k in tl.static_range(WIDTH):
            if (i - k * DILATION) % STRIDE == 0:
                out_x = x + (i - k * DILATION) // STRIDE
                seen = inside & (out_x >= 0) & (out_x < out_width)
                here = grad + (((image * out_height + out_y) * out_width + out_x) * channels + channel)
                weights = _every(taps + k * channels, WIDTH, channel, channels, HEIGHT)
                for j in tl.static_range(-((HEIGHT - 1) * DILATION // STRIDE), (ROWS - 1) // STRIDE + 1):
                    row = out_y + j
                    value = tl.load(
                        here + j * out_width * channels, mask=seen & (row >= 0) & (row < out_height), other=0.0
                    ).to(tl.float32)
                    for r in tl.static_range(ROWS):
                        for tap in tl.static_range(HEIGHT):
                            if r - tap * DILATION == j * STRIDE:
                                sums = _added(sums, r, value, weights[tap])
        at = x * STRIDE + i - left
        there = out + (((image * height + y) * width + at) * channels + channel)
        for r in tl.static_range(ROWS):
            tl.store(
                there + r * width * channels,
                sums[r].to(out.dtype.element_ty),
                mask=inside & (at >= 0) & (at < width) & (y + r >= 0) & (y + r < height),
            )


@triton.jit(do_not_specialize=SIZES)
def _weight_sums(
    x,
    grad,
    partial,
    groups,
    height,
    width,
    out_height,
    out_width,
    bands,
    columns,
    share,
    spacing,
    dilation,
    top,
    left,
    chunks,
    UNIT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    MEET: tl.constexpr,
    ROWS: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """For each tap the sum of input x gradient over `share` columns."""
    program = tl.program_id(0)
    channels = groups * UNIT
    channel = (program % chunks * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    start = program // chunks * share
    sums = _zeros(HEIGHT * WIDTH, PIXELS, CHANNELS)
    for first in range(0, share, PIXELS):
        column = (start + first + tl.arange(0, PIXELS))[:, None]
        image, band, out_x = _place(column, out_width, bands)
        out_y = _first_row(band, spacing, ROWS)
        y = out_y * STRIDE - top
        inside = (column < columns) & (channel < channels)
        there = grad + (((image * out_height + out_y) * out_width + out_x) * channels + channel)
        grads = ()
        for r in tl.static_range(ROWS):
            value = tl.load(
                there + r * spacing * out_width * channels,
                mask=inside & (out_y + r * spacing < out_height),
                other=0.0,
            )
            grads = grads + (value.to(tl.float32),)
        for i in tl.static_range(WIDTH):
            at = out_x * STRIDE - left + i * dilation
            seen = inside & (at >= 0) & (at < width)
            here = x + (((image * height + y) * width + at) * channels + channel)
            for j in tl.static_range((ROWS - 1) * MEET + HEIGHT):
                row = y + j * dilation
                value = tl.load(
                    here + j * dilation * width * channels, mask=seen & (row >= 0) & (row < height), other=0.0
                ).to(tl.float32)
                for r in tl.static_range(ROWS):
                    if j - r * MEET >= 0 and j - r * MEET < HEIGHT:
                        sums = _added(sums, (j - r * MEET) * WIDTH + i, value, grads[r])
    channel = program % chunks * CHANNELS + tl.arange(0, CHANNELS)
    mine = partial + program // chunks * (HEIGHT * WIDTH) * channels + channel
    for tap in tl.static_range(HEIGHT * WIDTH):
        tl.store(mine + tap * channels, tl.sum(sums[tap], 0), mask=channel < channels)


@triton.jit(do_not_specialize=["channels", "count", "shares"])
def _add_up(partial, out, channels, count, shares, ADDED: tl.constexpr, CHANNELS: tl.constexpr):
    """The sums of all programs for one tap, in the same order each time."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    tap = tl.program_id(1)
    sums = tl.zeros([ADDED, CHANNELS], tl.float32)
    for first in range(0, shares, ADDED):
        share = first + tl.arange(0, ADDED)[:, None]
        at = (share * count + tap) * channels + channel[None, :]
        sums += tl.load(partial + at, mask=(share < shares) & (channel < channels)[None, :], other=0.0)
    tl.store(out + channel * count + tap, tl.sum(sums, 0).to(out.dtype.element_ty), mask=channel < channels)
