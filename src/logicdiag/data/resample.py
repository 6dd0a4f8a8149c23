"""Resampling of a batch in which every sample has its own scale and place: the triangle filter of PIL's BILINEAR.

Seen along one axis, a view is an image of `size` pixels drawn `scaled` pixels long, of which `crop` pixels are taken
from `offset` on; outside the image there is padding. When an image gets smaller the filter gets wider, so that fine
texture is averaged and not aliased.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
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


class Taps(NamedTuple):
    """For each pixel of the crop, the pixels of the window that it is a weighted mean of; all 0 in padding."""

    places: Tensor
    weight: Tensor


def place(size: int, factor: float, crop: int, g: np.random.Generator) -> Axis:
    """Scale by `factor`; a longer axis is cropped and a shorter one padded, at a place that is uniform."""
    scaled = max(1, round(size * factor))
    slack = scaled - crop
    offset = int(g.integers(min(0, slack), max(0, slack) + 1))
    bare = Axis(size, scaled, offset, crop, 0, size)
    index, weight = _taps(bare)
    used = index[weight > 0]
    return bare._replace(start=int(used.min()), stop=int(used.max()) + 1)


def taps(axes: Sequence[Axis]) -> Taps:
    """The taps of a batch, as many for each pixel as the smallest scale needs."""
    each = [_taps(axis) for axis in axes]
    most = max(index.shape[1] for index, _ in each)
    indices, weights = (np.zeros((len(axes), axes[0].crop, most), dtype) for dtype in (np.int64, np.float32))
    for i, (index, weight) in enumerate(each):
        indices[i, :, : index.shape[1]] = index
        weights[i, :, : weight.shape[1]] = weight
    return Taps(torch.from_numpy(indices), torch.from_numpy(weights))


def nearest(axes: Sequence[Axis]) -> Tensor:
    """For each pixel of the crop, the pixel of the window that it lies in; -1 in padding."""
    found = []
    for axis in axes:
        centre, inside = _centres(axis)
        found.append(np.where(inside, np.floor(centre).astype(np.int64) - axis.start, -1))
    return torch.from_numpy(np.stack(found))


def resample(
    window: UInt8[Tensor, "b window_h window_w 3"], rows: Taps, columns: Taps
) -> Float[Tensor, "b 3 crop_h crop_w"]:
    """The crops in [0, 1]. Tap by tap and element by element: the same bits whatever else is in the batch."""
    b, height, width, _ = window.shape
    sample = torch.arange(b, device=window.device)[:, None]
    lines = window.view(b, height, width * 3)
    tall = torch.zeros(b, rows.places.shape[1], width * 3, device=window.device)
    for k in range(rows.places.shape[2]):
        tall += lines[sample, rows.places[:, :, k]] * rows.weight[:, :, k, None]
    lines = tall.view(b, -1, width, 3).permute(0, 3, 1, 2).contiguous()
    out = torch.zeros(*lines.shape[:3], columns.places.shape[1], device=window.device)
    for k in range(columns.places.shape[2]):
        index = columns.places[:, None, None, :, k].expand(out.shape)
        out += lines.gather(3, index) * columns.weight[:, None, None, :, k]
    return (out / 255).clamp_(0, 1)


def _centres(axis: Axis) -> tuple[Array, Array]:
    """Where the middle of each pixel of the crop lies in the source, and whether that is inside."""
    at = np.arange(axis.crop) + axis.offset
    if axis.flip:
        at = at[::-1]
    return (at + 0.5) * (axis.size / axis.scaled), (at >= 0) & (at < axis.scaled)


def _taps(axis: Axis) -> tuple[Array, Array]:
    centre, inside = _centres(axis)
    support = max(axis.size / axis.scaled, 1.0)
    first = np.floor(centre - support + 0.5).astype(np.int64)
    index = first[:, None] + np.arange(2 * int(np.ceil(support)) + 1)
    weight = np.maximum(0, 1 - np.abs(index + 0.5 - centre[:, None]) / support)
    weight[(index < 0) | (index >= axis.size) | ~inside[:, None]] = 0
    weight /= np.maximum(weight.sum(1, keepdims=True), np.finfo(np.float64).tiny)
    return np.clip(index - axis.start, 0, axis.stop - axis.start - 1), weight
