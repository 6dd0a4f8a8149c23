"""Resampling of an image at any scale and place: the triangle filter of PIL's BILINEAR.

Seen along one axis, a view is an image of `size` pixels drawn `scaled` pixels long, of which `crop` pixels are taken
from `offset` on; outside the image there is padding. When an image gets smaller the filter gets wider, so that fine
texture is averaged and not aliased.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


class Axis(NamedTuple):
    """One axis of one view; pixels `start` to `stop` of the source are all that it needs."""

    size: int
    scaled: int
    offset: int
    crop: int
    start: int
    stop: int
    flip: bool = False


def place(size: int, factor: float, crop: int, g: np.random.Generator, around: int | None = None) -> Axis:
    """Scale by `factor`; a longer axis is cropped and a shorter one padded, at a place that is uniform; among those
    where the crop has the pixel `around` in it, if there is one.
    """
    scaled = max(1, round(size * factor))
    slack = scaled - crop
    first, last = min(0, slack), max(0, slack)
    if around is not None and slack > 0:
        at = min(int((around + 0.5) * scaled / size), scaled - 1)
        first, last = max(first, at - crop + 1), min(last, at)
    offset = int(g.integers(first, last + 1))
    # The first and the last pixel of the image in the crop need the first and the last pixel of the window.
    inside = np.array([max(offset, 0), min(offset + crop, scaled) - 1])
    index, weight = _filter(inside, size, scaled)
    used = index[weight > 0]
    return Axis(size, scaled, offset, crop, int(used.min()), int(used.max()) + 1)


def nearest(axis: Axis) -> Int64[Tensor, " crop"]:
    """For each pixel of the crop, the pixel of the window that it lies in; -1 in padding."""
    at, inside = _places(axis)
    centre = (at + 0.5) * (axis.size / axis.scaled)
    return torch.from_numpy(np.where(inside, np.floor(centre).astype(np.int64) - axis.start, -1))


def resample(
    window: UInt8[Tensor, "window_h window_w 3"], rows: Axis, columns: Axis
) -> Float[Tensor, "3 crop_h crop_w"]:
    """The crop in [0, 1]; 0 in padding."""
    height, width, _ = window.shape
    index, weight = _taps(rows)
    lines = window.reshape(height, width * 3)
    tall = torch.zeros(rows.crop, width * 3)
    for k in range(index.shape[1]):
        tall += lines[index[:, k]] * weight[:, k, None]
    index, weight = _taps(columns)
    lines = tall.view(-1, width, 3).permute(2, 0, 1).contiguous()
    out = torch.zeros(3, rows.crop, columns.crop)
    for k in range(index.shape[1]):
        out += lines[:, :, index[:, k]] * weight[:, k]
    return (out / 255).clamp_(0, 1)


def _places(axis: Axis) -> tuple[Array, Array]:
    """The place of each pixel of the crop on the scaled axis, and whether there is one."""
    at = np.arange(axis.crop) + axis.offset
    if axis.flip:
        at = at[::-1]
    return at, (at >= 0) & (at < axis.scaled)


def _taps(axis: Axis) -> tuple[Int64[Tensor, "crop taps"], Float[Tensor, "crop taps"]]:
    """For each pixel of the crop, the pixels of the window that it is a weighted mean of; all 0 in padding."""
    at, inside = _places(axis)
    index, weight = _filter(at, axis.size, axis.scaled)
    weight[~inside] = 0
    index = np.clip(index - axis.start, 0, axis.stop - axis.start - 1)
    return torch.from_numpy(index), torch.from_numpy(weight.astype(np.float32))


def _filter(at: Array, size: int, scaled: int) -> tuple[Array, Array]:
    """Pixels of the source under the filter at each place of the scaled axis, and their weights."""
    centre = (at + 0.5) * (size / scaled)
    support = max(size / scaled, 1.0)
    first = np.floor(centre - support + 0.5).astype(np.int64)
    index = first[:, None] + np.arange(2 * int(np.ceil(support)) + 1)
    weight = np.maximum(0, 1 - np.abs(index + 0.5 - centre[:, None]) / support)
    weight[(index < 0) | (index >= size)] = 0
    weight /= np.maximum(weight.sum(1, keepdims=True), np.finfo(np.float64).tiny)
    return index, weight
