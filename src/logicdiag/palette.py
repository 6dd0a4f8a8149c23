"""One colour per leaf, the same wherever a leaf is drawn: neighbours in the tree are neighbours in hue."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import UInt8

from .kernels.layout import ROOT
from .logic.hierarchy import Hierarchy

Colour = tuple[int, int, int]

BACKGROUND: Colour = (26, 26, 32)
NO_LEAF: Colour = (224, 224, 192)
"""At index 255 of a picture's palette."""
FIRST_HUE = 20.0
"""In degrees: the first group begins at red."""
MARGIN = 0.8
"""Kept free on either side of a group, in units of a leaf's share of the circle."""
TONES = ((0.72, 0.15), (0.56, 0.17), (0.85, 0.12))
"""Lightness and chroma in turn, so that leaves of near hues can be told apart."""


def leaf_colours(h: Hierarchy) -> UInt8[np.ndarray, "leaves 3"]:
    """The colours of `h.leaves`, all different. They depend on the hierarchy alone.

    >>> h = Hierarchy.from_dict({"background": None, "animal": ["bird", "cat"], "vehicle": ["car", "bus"]})
    >>> dict(zip(h.leaves, leaf_colours(h).tolist()))["background"]
    [26, 26, 32]
    """
    arcs = dict(_arcs(h))
    colours: list[Colour] = []
    taken = {BACKGROUND, NO_LEAF}
    for leaf in h.leaf_indices:
        if is_background(h.names[leaf]):
            colours.append(BACKGROUND)
            continue
        lightness, chroma = TONES[len(colours) % len(TONES)]
        colour = _srgb(lightness, chroma, arcs[leaf])
        while colour in taken:  # crowded trees: darker until it is a colour of its own
            lightness *= 0.97
            colour = _srgb(lightness, chroma, arcs[leaf])
        taken.add(colour)
        colours.append(colour)
    return np.array(colours, np.uint8).reshape(-1, 3)


def picture_palette(h: Hierarchy, ids: Sequence[int] | None = None) -> list[int]:
    """`leaf_colours` as the 256 entries of a PNG of 8-bit indices; the last is for "no leaf".

    `ids` are the indices that stand for `h.leaves`, where they are not just counted.
    """
    entries = np.zeros((256, 3), np.uint8)
    colours = leaf_colours(h)[:255]
    entries[range(len(colours)) if ids is None else list(ids)] = colours
    entries[255] = NO_LEAF
    return [int(value) for value in entries.ravel()]


def is_background(name: str) -> bool:
    return name.casefold().strip("_ ") == "background"


def _arcs(h: Hierarchy) -> Iterator[tuple[int, float]]:
    """(leaf, hue): the circle is shared out down the tree, by the number of leaves, with gaps between groups."""
    widths = [0.0] * len(h)
    for node in reversed(range(len(h))):  # children stand after their parents
        kids = h.child_indices[node]
        widths[node] = sum(widths[k] for k in kids) if kids else float(not is_background(h.names[node]))
        if widths[node] and (kids or h.parents[node] == ROOT):  # a leaf at the top level is a group of its own
            widths[node] += 2 * MARGIN
    scale = 360 / max(1.0, sum(widths[node] for node in h.top_indices))
    begin = [0.0] * len(h)
    for parent in range(ROOT, len(h)):
        place = 0.0 if parent == ROOT else begin[parent] + MARGIN
        for node in h.group(parent):
            begin[node] = place
            place += widths[node]
    for leaf in h.leaf_indices:
        yield leaf, FIRST_HUE + scale * (begin[leaf] + widths[leaf] / 2)


def _srgb(lightness: float, chroma: float, hue: float) -> Colour:
    """OKLCH to 8-bit sRGB; chroma is lowered until the colour can be shown."""
    while True:
        a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
        long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
        middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
        short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
        linear = (
            4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
            -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
            -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
        )
        if chroma < 1e-3 or all(-1e-4 <= value <= 1.0001 for value in linear):
            red, green, blue = (round(255 * _gamma(min(1.0, max(0.0, value)))) for value in linear)
            return red, green, blue
        chroma *= 0.97


def _gamma(value: float) -> float:
    return 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055
