"""`scenes`: a generated data set, without files. Superclasses differ by colour, kinds by shape, leaves by texture."""

from __future__ import annotations

import colorsys
from dataclasses import astuple, dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from ..logic.hierarchy import Hierarchy
from .config import ScenesConfig
from .dataset import Masked
from .things import COAT, COATS, HUES, PAINTS, SHAPES, Array
from .views import draws

TREE = {
    "background": None,
    "animal": {"cat": ["tiger", "leopard"], "bird": ["hoopoe", "thrush"]},
    "vehicle": {"car": ["taxi", "racer"], "boat": ["sloop", "ketch"]},
    "plant": {"tree": ["oak", "pine"], "cactus": ["saguaro", "cholla"]},
}
HIERARCHY = Hierarchy.from_dict(TREE, "scenes")
THINGS = HIERARCHY.leaves[1:]
DEALT = 5
"""Things that every scene gets from a pack of all leaves, shuffled anew when it is used up: none is rare."""
GROUNDS = (
    ((0.09, 0.15, 0.72), (0.14, 0.3, 0.86)),
    ((0.19, 0.15, 0.66), (0.24, 0.25, 0.78)),
    ((0.5, 0.02, 0.6), (0.6, 0.09, 0.76)),
)
"""Lowest and highest hue, saturation and value of sand, meadow and slate."""
SMALLEST = 32


def scenes(config: ScenesConfig) -> tuple[Hierarchy, list[Masked], list[Masked]]:
    """Hierarchy, training scenes and evaluation scenes; a scene is made when it is looked at."""
    for key, least in (("size", SMALLEST), ("train", 0), ("val", 0), ("seed", 0), ("noise", 0)):
        if getattr(config, key) < least:
            raise OptionError(f"scenes.{key} is {getattr(config, key)}, expected at least {least}")
    train, val = (
        [_item(_Scene(split, index, config.size, config.seed, config.noise)) for index in range(count)]
        for split, count in (("train", config.train), ("val", config.val))
    )
    return HIERARCHY, train, val


@dataclass(frozen=True)
class _Scene:
    split: str
    index: int
    size: int
    seed: int
    noise: float


@dataclass(frozen=True)
class _Picture:
    scene: _Scene

    def __call__(self) -> NDArray[np.uint8]:
        image: NDArray[np.uint8] = _painted(self.scene)[0].copy()
        return image


@dataclass(frozen=True)
class _Labels:
    scene: _Scene

    def __call__(self) -> NDArray[np.uint8]:
        mask: NDArray[np.uint8] = _painted(self.scene)[1].copy()
        return mask


def _item(scene: _Scene) -> Masked:
    return Masked(f"{scene.split}_{scene.index:04d}", _Picture(scene), _Labels(scene))


@dataclass(frozen=True)
class Thing:
    """Where a thing stands, in a scene of size 1, and how it looks."""

    leaf: str
    x: float
    y: float
    size: float
    turn: float
    mirrored: bool
    colour: tuple[float, float, float]
    period: float
    phase: tuple[float, float]
    contrast: float


@lru_cache(maxsize=256)  # training comes back to the same scenes
def _painted(scene: _Scene) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Image and mask, from the back to the front."""
    split, index, size, seed, noise = astuple(scene)
    (g,) = draws(seed, f"scenes.{split}", index, (0,))
    image = _ground(g, size)
    mask = np.zeros((size, size), np.uint8)
    things: list[Thing] = []
    for leaf in _cast(seed, split, index, g):
        things.append(_thing(g, leaf, things))
    for thing in sorted(things, key=lambda t: t.y):
        _paint(thing, image, mask)
    image *= _light(g, size)
    image += g.normal(0, noise, image.shape) if noise else 0
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8), mask


def _cast(seed: int, split: str, index: int, g: np.random.Generator) -> list[str]:
    """The leaves of a scene: those dealt to it and up to two more."""
    dealt = []
    for card in range(index * DEALT, (index + 1) * DEALT):
        (pack,) = draws(seed, f"scenes.{split}.pack", card // len(THINGS), (0,))
        dealt.append(THINGS[pack.permutation(len(THINGS))[card % len(THINGS)]])
    return dealt + [THINGS[i] for i in g.integers(len(THINGS), size=g.integers(3))]


def _thing(g: np.random.Generator, leaf: str, others: list[Thing]) -> Thing:
    """Of three places the one farthest from the others: things overlap, but do not heap up."""
    kind = _kind(leaf)
    places = g.uniform((0.1, 0.16), (0.9, 0.86), (3, 2))
    room = [min((np.hypot(x - other.x, y - other.y) for other in others), default=0) for x, y in places]
    x, y = places[int(np.argmax(room))]
    hue = HUES[kind] + g.normal(0, 0.018)
    return Thing(
        leaf=leaf,
        x=float(x),
        y=float(y),
        size=float((0.12 + 0.07 * y) * g.uniform(0.85, 1.3)),
        turn=float(g.normal(0, 0.12)),
        mirrored=bool(g.random() < 0.5),
        colour=colorsys.hsv_to_rgb(hue % 1, float(g.uniform(0.5, 0.75)), float(g.uniform(0.55, 0.8))),
        period=float(g.uniform(0.3, 0.4)),
        phase=(float(g.random()), float(g.random())),
        contrast=float(g.uniform(0.2, 0.38)),
    )


def _paint(thing: Thing, image: Array, mask: NDArray[np.uint8]) -> None:
    """Shadow, then part by part, within the thing's own frame."""
    size = len(mask)
    unit = thing.size * size
    reach = 1.3 * unit
    top, bottom = (int(np.clip(thing.y * size + d, 0, size)) for d in (-reach, reach + 1))
    left, right = (int(np.clip(thing.x * size + d, 0, size)) for d in (-reach, reach + 1))
    here = np.s_[top:bottom, left:right]
    rows, columns = np.mgrid[here]
    p, q = (columns + 0.5 - thing.x * size) / unit, (thing.y * size - rows - 0.5) / unit
    frame, labels = image[here], mask[here]
    frame *= 1 - 0.3 * np.clip(1.2 - np.sqrt((p / 0.95) ** 2 + ((q + 0.85) / 0.22) ** 2), 0, 1)[:, :, None]
    if thing.mirrored:
        p = -p
    cos, sin = np.cos(thing.turn), np.sin(thing.turn)
    u, v = cos * p + sin * q, cos * q - sin * p
    pattern = COATS[thing.leaf](u / thing.period + thing.phase[0], v / thing.period + thing.phase[1])
    shade = (1 + 0.16 * np.clip(v, -1, 1))[:, :, None]
    coat = shade * (1 + thing.contrast * pattern)[:, :, None] * thing.colour
    number = HIERARCHY.leaves.index(thing.leaf)
    for distance, paint in SHAPES[_kind(thing.leaf)](u, v):
        rows, columns = (np.flatnonzero((distance * unit < 0.5).any(axis)) for axis in (1, 0))
        if not len(rows):
            continue  # outside the picture
        part = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        alpha = np.clip(0.5 - distance[part] * unit, 0, 1)[:, :, None]
        frame[part] += alpha * ((coat[part] if paint == COAT else shade[part] * PAINTS[paint]) - frame[part])
        labels[distance < 0] = number


def _kind(leaf: str) -> str:
    return HIERARCHY.path(leaf)[-2]


def _ground(g: np.random.Generator, size: int) -> Array:
    """Pale sand, meadow or slate, with soft patches."""
    hue, saturation, value = g.uniform(*GROUNDS[g.integers(len(GROUNDS))])
    colour = np.array(colorsys.hsv_to_rgb(hue, saturation, value))
    patches = _smooth(g, 5, size) * 0.09 + _smooth(g, 14, size) * 0.05
    tint = np.stack([_smooth(g, 4, size) for _ in range(3)], 2) * 0.03
    return colour * (1 + patches)[:, :, None] + tint


def _smooth(g: np.random.Generator, cells: int, size: int) -> Array:
    """Noise of a coarse grid, interpolated smoothly."""
    grid = g.normal(size=(cells + 1, cells + 1))
    at = np.linspace(0, cells, size, endpoint=False)
    low = at.astype(int)
    t = at - low
    t = t * t * (3 - 2 * t)
    rows = grid[low] * (1 - t)[:, None] + grid[low + 1] * t[:, None]
    blend: Array = rows[:, low] * (1 - t) + rows[:, low + 1] * t
    return blend


def _light(g: np.random.Generator, size: int) -> Array:
    """Light from one side, of a colour between evening and noon."""
    angle, strength = g.uniform(0, 2 * np.pi), g.uniform(0.05, 0.3)
    across = np.linspace(-1, 1, size)
    slope = np.cos(angle) * across[None, :] + np.sin(angle) * across[:, None]
    colour = 1 + g.uniform(-0.06, 0.06, 3)
    light: Array = (1 + strength * slope)[:, :, None] * colour * g.uniform(0.85, 1.1)
    return light
