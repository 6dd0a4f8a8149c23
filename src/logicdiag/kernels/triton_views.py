"""Views of images, for GPUs: what `data.views` and `data.windows` say, in few launches and without synchronisation.

A program takes some pixels of one sample, so what is done to a sample is a branch and not a mask, and a view is the
same whatever else is in the batch. Everything that differs from batch to batch is read from tensors.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
TILE = (8, 64)


# ---- strong views ------------------------------------------------------------------------------------------------


def strong_view(image: Tensor, plan: Mapping[str, Tensor], boxes: Tensor | None, radius: int) -> Tensor:
    """As `data.views.strong_view`; `radius` is that of the blur."""
    image = image.contiguous()
    b, _, height, width = image.shape
    factors, order, sigma = (plan[key].contiguous() for key in ("factors", "order", "sigma"))
    gray = plan["gray"].contiguous().view(torch.uint8)
    pixels = height * width
    blocks = triton.cdiv(pixels, BLOCK)
    lumas = torch.empty(b, blocks, device=image.device)
    coloured, half, out = (torch.empty_like(image) for _ in range(3))
    with torch.cuda.device_of(image):
        _luma_before_contrast[(blocks, b)](image, factors, order, lumas, pixels, BLOCK=BLOCK)
        _colour[(blocks, b)](image, factors, order, gray, lumas, coloured, pixels, BLOCK=BLOCK)
        _blur_down[(blocks, b * 3)](coloured, sigma, half, height, width, RADIUS=radius, BLOCK=BLOCK, num_warps=8)
        _blur_across_and_mix[(blocks, b * 3)](
            coloured,
            half,
            sigma,
            sigma if boxes is None else boxes.contiguous(),
            out,
            b,
            height,
            width,
            MIX=boxes is not None,
            RADIUS=radius,
            BLOCK=BLOCK,
            num_warps=8,
        )
    return out


@triton.jit
def _luma(red, green, blue):
    return _clamped(0.299 * red + 0.587 * green + 0.114 * blue)


@triton.jit
def _clamped(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _channel(sextant, value, chroma, START: tl.constexpr):
    k = sextant + START
    k = k - 6 * tl.floor(k / 6)
    return _clamped(value - chroma * _clamped(tl.minimum(k, 4 - k)))


@triton.jit
def _changed(red, green, blue, operation, factor, mean):
    """One operation, by its place in JITTER. Factors that change nothing leave every bit."""
    if operation == 3:
        if factor != 0:
            value = tl.maximum(tl.maximum(red, green), blue)
            chroma = value - tl.minimum(tl.minimum(red, green), blue)
            span = tl.maximum(chroma, 1.1754943508222875e-38)
            other = tl.where(value == green, 2 + (blue - red) / span, 4 + (red - green) / span)
            sextant = tl.where(value == red, (green - blue) / span, other) + 6 * factor
            red = _channel(sextant, value, chroma, 5)
            green = _channel(sextant, value, chroma, 3)
            blue = _channel(sextant, value, chroma, 1)
    else:
        luma = _luma(red, green, blue)
        other = tl.where(operation == 1, mean, tl.where(operation == 2, luma, 0.0)) * (1 - factor)
        red = _clamped(red * factor + other)
        green = _clamped(green * factor + other)
        blue = _clamped(blue * factor + other)
    return red, green, blue


@triton.jit
def _luma_before_contrast(image, factors, order, lumas, pixels, BLOCK: tl.constexpr):
    """The sum over each block of the luma that contrast will find."""
    block = tl.program_id(0)
    sample = tl.program_id(1)
    pixel = block * BLOCK + tl.arange(0, BLOCK)
    here = pixel < pixels
    start = image + sample.to(tl.int64) * 3 * pixels + pixel
    red = tl.load(start, mask=here, other=0.0)
    green = tl.load(start + pixels, mask=here, other=0.0)
    blue = tl.load(start + 2 * pixels, mask=here, other=0.0)
    before = True
    for turn in range(4):
        operation = tl.load(order + sample * 4 + turn)
        before = before & (operation != 1)
        if before:
            factor = tl.load(factors + sample * 4 + operation)
            red, green, blue = _changed(red, green, blue, operation, factor, 0.0)
    tl.store(lumas + sample * tl.num_programs(0) + block, tl.sum(tl.where(here, _luma(red, green, blue), 0.0), 0))


@triton.jit
def _colour(image, factors, order, gray, lumas, out, pixels, BLOCK: tl.constexpr):
    """The colour operations in the sample's order, and gray."""
    block = tl.program_id(0)
    sample = tl.program_id(1)
    blocks = tl.num_programs(0)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, blocks, BLOCK):
        at = first + tl.arange(0, BLOCK)
        total += tl.load(lumas + sample * blocks + at, mask=at < blocks, other=0.0)
    mean = tl.sum(total, 0) / pixels
    pixel = block * BLOCK + tl.arange(0, BLOCK)
    here = pixel < pixels
    offset = sample.to(tl.int64) * 3 * pixels + pixel
    red = tl.load(image + offset, mask=here, other=0.0)
    green = tl.load(image + offset + pixels, mask=here, other=0.0)
    blue = tl.load(image + offset + 2 * pixels, mask=here, other=0.0)
    for turn in range(4):
        operation = tl.load(order + sample * 4 + turn)
        factor = tl.load(factors + sample * 4 + operation)
        red, green, blue = _changed(red, green, blue, operation, factor, mean)
    if tl.load(gray + sample) != 0:
        luma = _luma(red, green, blue)
        red = luma
        green = luma
        blue = luma
    tl.store(out + offset, red, mask=here)
    tl.store(out + offset + pixels, green, mask=here)
    tl.store(out + offset + 2 * pixels, blue, mask=here)


@triton.jit
def _blurred(plane, at, step, length, sigma, here, RADIUS: tl.constexpr):
    """The Gaussian mean along one axis; `at` is the place on it, and `plane` points to its beginning."""
    total = 0.0
    for k in tl.static_range(-RADIUS, RADIUS + 1):
        total += tl.exp(-0.5 * (k / sigma) * (k / sigma))
    out = tl.zeros(at.shape, tl.float32)
    for k in tl.static_range(-RADIUS, RADIUS + 1):
        weight = tl.exp(-0.5 * (k / sigma) * (k / sigma)) / total
        place = tl.minimum(tl.maximum(at + k, 0), length - 1)
        out += tl.load(plane + place * step, mask=here, other=0.0) * weight
    return out


@triton.jit
def _blur_down(image, sigmas, out, height, width, RADIUS: tl.constexpr, BLOCK: tl.constexpr):
    """Along columns; samples that are not blurred are not written."""
    plane = tl.program_id(1)
    sigma = tl.load(sigmas + plane // 3)
    if sigma > 0:
        pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        here = pixel < height * width
        offset = plane.to(tl.int64) * height * width
        column = pixel % width
        blurred = _blurred(image + offset + column, pixel // width, width, height, sigma, here, RADIUS)
        tl.store(out + offset + pixel, blurred, mask=here)


@triton.jit
def _blur_across_and_mix(
    image,
    half,
    sigmas,
    boxes,
    out,
    samples,
    height,
    width,
    MIX: tl.constexpr,
    RADIUS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Along rows, then to where the pixels belong: a sample's own place, or its partner's inside of the partner's box.

    Samples that are not blurred come from `image`, the others from `half`.
    """
    plane = tl.program_id(1)
    sample = plane // 3
    sigma = tl.load(sigmas + sample)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixels = height * width
    here = pixel < pixels
    row = pixel // width
    column = pixel % width
    offset = plane.to(tl.int64) * pixels
    if sigma > 0:
        blurred = _blurred(half + offset + row * width, column, 1, width, sigma, here, RADIUS)
        value = _clamped(blurred)
    else:
        value = tl.load(image + offset + pixel, mask=here, other=0.0)
    if MIX:
        mate = sample ^ 1
        mate = tl.where(mate < samples, mate, sample)
        own = _in_box(boxes, sample, row, column)
        lent = _in_box(boxes, mate, row, column)
        to_mate = (mate * 3 + plane % 3).to(tl.int64) * pixels
        tl.store(out + offset + pixel, value, mask=here & ~own)
        tl.store(out + to_mate + pixel, value, mask=here & lent)
    else:
        tl.store(out + offset + pixel, value, mask=here)


@triton.jit
def _in_box(boxes, sample, row, column):
    top = tl.load(boxes + sample * 4)
    left = tl.load(boxes + sample * 4 + 1)
    bottom = tl.load(boxes + sample * 4 + 2)
    right = tl.load(boxes + sample * 4 + 3)
    return (row >= top) & (row < bottom) & (column >= left) & (column < right)


# ---- weak views --------------------------------------------------------------------------------------------------


def develop(
    packed: Tensor, table: Tensor, crop: int, masked: bool, padding: float, ignore: int
) -> tuple[Tensor, Tensor | None, Tensor]:
    """As `data.windows.develop`; `table` has a line of numbers for each sample."""
    samples, fields = table.shape
    image = torch.empty(samples, 3, crop, crop, device=packed.device)
    leaf = torch.empty(samples, crop, crop, dtype=torch.int64, device=packed.device) if masked else None
    valid = torch.empty(samples, crop, crop, dtype=torch.uint8, device=packed.device)
    with torch.cuda.device_of(packed):
        _develop[(triton.cdiv(crop, TILE[1]), triton.cdiv(crop, TILE[0]), samples)](
            packed,
            table,
            image,
            valid if leaf is None else leaf,
            valid,
            crop,
            FIELDS=fields,
            PADDING=padding,
            IGNORE=ignore,
            MASKED=masked,
            TALL=TILE[0],
            WIDE=TILE[1],
        )
    return image, leaf, valid.view(torch.bool)


@triton.jit
def _centres(axis, at):
    """Where pixels of the crop lie in the source, and whether that is inside; `axis` points to an `Axis`."""
    size = tl.load(axis)
    scaled = tl.load(axis + 1)
    crop = tl.load(axis + 3)
    there = tl.load(axis + 2) + tl.where(tl.load(axis + 6) != 0, crop - 1 - at, at)
    ratio = size.to(tl.float64) / scaled.to(tl.float64)
    return (there.to(tl.float64) + 0.5) * ratio, (there >= 0) & (there < scaled), ratio


@triton.jit
def _weight(first, fraction, support, axis, k):
    """The weight of tap k before all are made to sum to 1."""
    weight = tl.maximum(1 - tl.abs(k - fraction) / support, 0.0)
    return tl.where((first + k >= 0) & (first + k < tl.load(axis)), weight, 0.0)


@triton.jit
def _in_window(axis, index):
    start = tl.load(axis + 4)
    return tl.minimum(tl.maximum(index - start, 0), tl.load(axis + 5) - start - 1)


@triton.jit
def _taps(axis, at):
    """The first tap of each pixel, where in it the centre lies, and the filter's reach in pixels of the source.

    Places are found in float64 as the reference finds them; what is left of them within a pixel fits in float32.
    """
    centre, inside, ratio = _centres(axis, at)
    support = tl.maximum(ratio, 1.0)
    first = tl.floor(centre - support + 0.5)
    fraction = (centre - first - 0.5).to(tl.float32)
    count = 2 * tl.ceil(support).to(tl.int32) + 1
    nearest = _in_window(axis, tl.floor(centre).to(tl.int64))
    return first.to(tl.int64), fraction, support.to(tl.float32), count, nearest, inside


@triton.jit
def _develop(
    packed,
    table,
    image,
    leaf,
    valid,
    crop,
    FIELDS: tl.constexpr,
    PADDING: tl.constexpr,
    IGNORE: tl.constexpr,
    MASKED: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
):
    sample = tl.program_id(2)
    rows = table + sample * FIELDS
    columns = rows + 7
    y = tl.program_id(1) * TALL + tl.arange(0, TALL)[:, None]
    x = tl.program_id(0) * WIDE + tl.arange(0, WIDE)[None, :]
    first_row, row_fraction, row_support, row_count, row, row_inside = _taps(rows, y)
    first_column, column_fraction, column_support, column_count, column, column_inside = _taps(columns, x)
    row_sum = tl.zeros([TALL, 1], tl.float32)
    for k in range(row_count):
        row_sum += _weight(first_row, row_fraction, row_support, rows, k)
    column_sum = tl.zeros([1, WIDE], tl.float32)
    for k in range(column_count):
        column_sum += _weight(first_column, column_fraction, column_support, columns, k)
    width = tl.load(columns + 5) - tl.load(columns + 4)
    pixels = packed + tl.load(rows + 14)
    red = tl.zeros([TALL, WIDE], tl.float32)
    green = tl.zeros([TALL, WIDE], tl.float32)
    blue = tl.zeros([TALL, WIDE], tl.float32)
    for j in range(column_count):
        across = _weight(first_column, column_fraction, column_support, columns, j) / tl.maximum(column_sum, 1e-30)
        tap_column = _in_window(columns, first_column + j)
        down_red = tl.zeros([TALL, WIDE], tl.float32)
        down_green = tl.zeros([TALL, WIDE], tl.float32)
        down_blue = tl.zeros([TALL, WIDE], tl.float32)
        for i in range(row_count):
            down = _weight(first_row, row_fraction, row_support, rows, i) / tl.maximum(row_sum, 1e-30)
            here = pixels + (_in_window(rows, first_row + i) * width + tap_column) * 3
            down_red += tl.load(here).to(tl.float32) * down
            down_green += tl.load(here + 1).to(tl.float32) * down
            down_blue += tl.load(here + 2).to(tl.float32) * down
        red += down_red * across
        green += down_green * across
        blue += down_blue * across
    inside = row_inside & column_inside
    there = (y < crop) & (x < crop)
    plane = crop * crop
    offset = sample.to(tl.int64) * plane + y * crop + x
    colours = sample.to(tl.int64) * 3 * plane + y * crop + x
    tl.store(image + colours, tl.where(inside, _clamped(red / 255), PADDING), mask=there)
    tl.store(image + colours + plane, tl.where(inside, _clamped(green / 255), PADDING), mask=there)
    tl.store(image + colours + 2 * plane, tl.where(inside, _clamped(blue / 255), PADDING), mask=there)
    tl.store(valid + offset, inside.to(tl.uint8), mask=there)
    if MASKED:
        label = tl.load(packed + tl.load(rows + 15) + row * width + column).to(tl.int64)
        tl.store(leaf + offset, tl.where(inside & (label != IGNORE), label, -1), mask=there)
