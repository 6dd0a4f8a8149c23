"""A batch of windows of images, each cut to what its view needs, packed into one buffer that travels as a whole.

table    for each sample: its rows, its columns, where its image and its mask begin in the buffer
images   uint8, (height, width, 3), one after another
masks    uint8, (height, width), likewise; none for unlabelled images
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor

from ..kernels.gpu import fuses
from .dataset import IGNORE
from .resample import Axis, nearest, resample

PADDING = 0.5
AXIS = len(Axis._fields)
FIELDS = 2 * AXIS + 2

Developed = tuple[
    Float[Tensor, "b 3 crop crop"],
    Int64[Tensor, "b crop crop"] | None,
    Bool[Tensor, "b crop crop"],
]


class Window(NamedTuple):
    """What one view needs of its item."""

    image: NDArray[np.uint8]
    mask: NDArray[np.uint8] | None
    rows: Axis
    columns: Axis


class Packed(NamedTuple):
    buffer: UInt8[Tensor, " bytes"]
    samples: int
    crop: int
    masked: bool

    @property
    def table(self) -> Int64[Tensor, "b fields"]:
        return self.buffer[: self.samples * FIELDS * 8].view(torch.int64).view(self.samples, FIELDS)

    def pinned(self) -> Packed:
        return self._replace(buffer=self.buffer.pin_memory())

    def to(self, device: torch.device) -> Packed:
        """From pinned memory to a GPU nobody waits for this."""
        return self._replace(buffer=self.buffer.to(device, non_blocking=True))


def pack(windows: Sequence[Window]) -> Packed:
    arrays = [w.image for w in windows] + [w.mask for w in windows if w.mask is not None]
    ends = len(windows) * FIELDS * 8 + np.cumsum([array.size for array in arrays])
    packed = Packed(
        torch.empty(int(ends[-1]), dtype=torch.uint8),
        len(windows),
        windows[0].rows.crop,
        len(arrays) > len(windows),
    )
    buffer, table = packed.buffer.numpy(), packed.table.numpy()
    for array, end in zip(arrays, ends, strict=True):
        buffer[end - array.size : end].reshape(array.shape)[:] = array
    starts = ends - [array.size for array in arrays]
    for i, w in enumerate(windows):
        table[i] = *w.rows, *w.columns, starts[i], starts[len(windows) + i] if packed.masked else 0
    return packed


def develop(packed: Packed, device: torch.device) -> Developed:
    """The crops in [0, 1], padding mid gray; their leaves, -1 for ignore and padding; and what is no padding."""
    if fuses(device):
        from ..kernels import triton_views

        there = packed.to(device)
        return triton_views.develop(there.buffer, there.table, there.crop, there.masked, PADDING, IGNORE)
    images, leaves, valid = zip(*(_developed(packed, line) for line in packed.table.tolist()), strict=True)
    leaf = torch.stack(leaves).to(device) if packed.masked else None
    return torch.stack(images).to(device), leaf, torch.stack(valid).to(device)


def _developed(packed: Packed, line: list[Any]) -> tuple[Tensor, Tensor | None, Tensor]:
    """The sample of one line of the table."""
    rows, columns = Axis(*line[:AXIS]), Axis(*line[AXIS : 2 * AXIS])
    image_at, mask_at = line[2 * AXIS :]
    size = (rows.stop - rows.start, columns.stop - columns.start)
    pixels = size[0] * size[1]
    row, column = nearest(rows), nearest(columns)
    valid = (row >= 0)[:, None] & (column >= 0)[None, :]
    window = packed.buffer[image_at : image_at + 3 * pixels].view(*size, 3)
    image = torch.where(valid, resample(window, rows, columns), PADDING)
    if not packed.masked:
        return image, None, valid
    mask = packed.buffer[mask_at : mask_at + pixels].view(size)
    leaf = mask[row.clamp_min(0)[:, None], column.clamp_min(0)[None, :]].long()
    return image, torch.where(valid & (leaf != IGNORE), leaf, -1), valid
