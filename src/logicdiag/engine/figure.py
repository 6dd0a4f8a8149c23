"""Pictures of labels, side by side, with a legend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ..logic.hierarchy import Hierarchy
from ..palette import leaf_colours

Picture = NDArray[np.uint8]
CONFLICT, STRIPE = (255, 255, 255), (230, 0, 90)
TITLE, GAP, LEGEND = 30, 6, 22
SIDE = 192
"""Pixels of a tile's longer side."""


@dataclass(frozen=True)
class Column:
    title: str
    pictures: list[Picture]


def coloured(leaf: Int64[Tensor, "h w"], h: Hierarchy) -> Picture:
    """Each leaf in its colour; none is black."""
    colours = np.vstack([leaf_colours(h), np.zeros((1, 3), np.uint8)])
    picture: Picture = colours[leaf.cpu().numpy()]
    return picture


def marked(leaf: Int64[Tensor, "h w"], h: Hierarchy) -> Picture:
    """As `coloured`, with diagonal stripes where there is no leaf to show."""
    picture, indices = coloured(leaf, h), leaf.cpu().numpy()
    rows, columns = np.indices(indices.shape)
    stripes = (rows + columns) // 2 % 2 == 0
    picture[(indices < 0) & stripes] = STRIPE
    picture[(indices < 0) & ~stripes] = CONFLICT
    return picture


def grid(columns: list[Column], h: Hierarchy) -> Image.Image:
    """Columns of pictures under their titles, and below them which colour is which class."""
    height = max(len(column.pictures) for column in columns)
    tall, wide = columns[0].pictures[0].shape[:2]
    scale = SIDE / max(tall, wide)
    tile = (round(wide * scale), round(tall * scale))
    font: Any = ImageFont.load_default(12)
    per_row = max(1, (len(columns) * (tile[0] + GAP)) // 130)
    lines = -(-(len(h.leaves) + 1) // per_row)
    size = (
        GAP + len(columns) * (tile[0] + GAP),
        TITLE + height * (tile[1] + GAP) + GAP + lines * LEGEND,
    )
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    for x, column in enumerate(columns):
        left = GAP + x * (tile[0] + GAP)
        pen.text((left, 9), column.title, "black", font)
        for y, picture in enumerate(column.pictures):
            sheet.paste(
                Image.fromarray(picture).resize(tile, Image.Resampling.NEAREST), (left, TITLE + y * (tile[1] + GAP))
            )
    top = TITLE + height * (tile[1] + GAP) + GAP
    entries = [*zip(h.leaves, map(tuple, leaf_colours(h).tolist()), strict=True), ("in conflict", STRIPE)]
    for number, (name, colour) in enumerate(entries):
        left, line = GAP + number % per_row * 130, top + number // per_row * LEGEND
        pen.rectangle((left, line + 2, left + 14, line + 16), colour)
        pen.text((left + 20, line + 2), name, "black", font)
    return sheet
