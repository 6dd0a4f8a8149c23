"""The things of the built-in scenes: shapes by kind, coats by leaf.

A thing is drawn around its own origin, u to the right and v up, about one unit to each side. A shape is a list of
parts, painted in order; a part is a signed distance (negative inside) and a paint.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Part = tuple[Array, str]

COAT, DARK, GLASS, WOOD = "coat", "dark", "glass", "wood"
PAINTS = {DARK: (0.13, 0.12, 0.14), GLASS: (0.78, 0.86, 0.9), WOOD: (0.42, 0.29, 0.19)}


# ---- signed distances --------------------------------------------------------------------------------------------


def ellipse(u: Array, v: Array, x: float, y: float, a: float, b: float) -> Array:
    p, q = (u - x) / a, (v - y) / b
    return (np.sqrt(p * p + q * q) - 1) * min(a, b)


def disc(u: Array, v: Array, x: float, y: float, r: float) -> Array:
    return ellipse(u, v, x, y, r, r)


def box(u: Array, v: Array, x: float, y: float, a: float, b: float, round_: float = 0.08) -> Array:
    p, q = np.abs(u - x) - (a - round_), np.abs(v - y) - (b - round_)
    outside: Array = np.sqrt(np.maximum(p, 0) ** 2 + np.maximum(q, 0) ** 2)
    return outside + np.minimum(np.maximum(p, q), 0) - round_


def rod(u: Array, v: Array, x0: float, y0: float, x1: float, y1: float, r: float) -> Array:
    """A thick line with round ends."""
    p, q = u - x0, v - y0
    dx, dy = x1 - x0, y1 - y0
    t = np.clip((p * dx + q * dy) / (dx * dx + dy * dy), 0, 1)
    return np.sqrt((p - t * dx) ** 2 + (q - t * dy) ** 2) - r


def polygon(u: Array, v: Array, *corners: tuple[float, float]) -> Array:
    """Convex, corners clockwise."""
    sides = []
    for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True):
        dx, dy = x1 - x0, y1 - y0
        sides.append(((u - x0) * -dy + (v - y0) * dx) / np.hypot(dx, dy))
    farthest: Array = np.maximum.reduce(sides)
    return farthest


def union(*parts: Array) -> Array:
    nearest: Array = np.minimum.reduce(parts)
    return nearest


# ---- shapes ------------------------------------------------------------------------------------------------------


def cat(u: Array, v: Array) -> list[Part]:
    legs = [
        rod(u, v, x, -0.1, x + d, -0.72, 0.1) for x, d in ((-0.55, -0.06), (-0.3, 0.04), (0.3, -0.04), (0.55, 0.06))
    ]
    ears = [polygon(u, v, (x - 0.1, 0.55), (x, 0.82), (x + 0.1, 0.55)) for x in (0.6, 0.88)]
    return [
        (rod(u, v, -0.68, 0.12, -1.05, 0.62, 0.06), COAT),
        (union(ellipse(u, v, 0, 0.03, 0.78, 0.36), disc(u, v, 0.74, 0.36, 0.29), *legs, *ears), COAT),
        (union(disc(u, v, 0.7, 0.42, 0.05), disc(u, v, 0.88, 0.42, 0.05)), DARK),
    ]


def bird(u: Array, v: Array) -> list[Part]:
    return [
        (union(*(rod(u, v, x, -0.3, x - 0.04, -0.8, 0.045) for x in (-0.12, 0.16))), DARK),
        (polygon(u, v, (0.72, 0.62), (1.05, 0.46), (0.72, 0.4)), DARK),
        (
            union(
                ellipse(u, v, 0, 0, 0.66, 0.46),
                disc(u, v, 0.52, 0.48, 0.28),
                polygon(u, v, (-1.15, 0.45), (-0.4, 0.3), (-0.4, -0.1), (-1.1, 0.12)),
            ),
            COAT,
        ),
        (disc(u, v, 0.6, 0.55, 0.06), DARK),
    ]


def car(u: Array, v: Array) -> list[Part]:
    wheels = [(disc(u, v, x, -0.42, 0.22), DARK) for x in (-0.55, 0.55)]
    hubs = [(disc(u, v, x, -0.42, 0.08), GLASS) for x in (-0.55, 0.55)]
    return [
        (union(box(u, v, 0, -0.12, 1.0, 0.32, 0.16), box(u, v, -0.08, 0.32, 0.62, 0.3, 0.16)), COAT),
        (union(box(u, v, -0.36, 0.34, 0.22, 0.16), box(u, v, 0.2, 0.34, 0.22, 0.16)), GLASS),
        *wheels,
        *hubs,
    ]


def boat(u: Array, v: Array) -> list[Part]:
    sails = (
        polygon(u, v, (0.05, 1.0), (0.85, -0.08), (0.05, -0.08)),
        polygon(u, v, (-0.05, 0.85), (-0.05, -0.08), (-0.68, -0.08)),
    )
    return [
        (rod(u, v, 0, -0.3, 0, 1.02, 0.05), WOOD),
        (union(*sails), COAT),
        (polygon(u, v, (-1.0, -0.16), (1.0, -0.16), (0.68, -0.62), (-0.75, -0.62)), COAT),
    ]


def tree(u: Array, v: Array) -> list[Part]:
    return [
        (rod(u, v, 0, -0.95, 0, 0, 0.11), WOOD),
        (union(disc(u, v, 0, 0.42, 0.5), disc(u, v, -0.42, 0.08, 0.42), disc(u, v, 0.42, 0.08, 0.42)), COAT),
    ]


def cactus(u: Array, v: Array) -> list[Part]:
    left = union(rod(u, v, -0.1, -0.12, -0.58, -0.12, 0.16), rod(u, v, -0.58, -0.12, -0.58, 0.36, 0.17))
    right = union(rod(u, v, 0.1, -0.35, 0.58, -0.35, 0.16), rod(u, v, 0.58, -0.35, 0.58, 0.12, 0.17))
    return [(union(rod(u, v, 0, -0.95, 0, 0.72, 0.28), left, right), COAT)]


# ---- coats: a pattern of mean 0, about from -1 to 1; u and v count periods ---------------------------------------


def bars(u: Array, v: Array) -> Array:
    return _crisp(np.sin(2 * np.pi * u))


def rows(u: Array, v: Array) -> Array:
    return _crisp(np.sin(2 * np.pi * v))


def rising(u: Array, v: Array) -> Array:
    return _crisp(np.sin(2 * np.pi * (v - u) * 0.7071))


def falling(u: Array, v: Array) -> Array:
    return _crisp(np.sin(2 * np.pi * (v + u) * 0.7071))


def dots(u: Array, v: Array) -> Array:
    """Dark on light; the coat's mean is that of the others."""
    return -0.4 - _crisp(np.cos(2 * np.pi * u * 0.85) + np.cos(2 * np.pi * v * 0.85) - 0.6)


def checks(u: Array, v: Array) -> Array:
    return _crisp(2 * np.sin(2 * np.pi * u * 0.7) * np.sin(2 * np.pi * v * 0.7))


def _crisp(wave: Array) -> Array:
    return np.tanh(2 * wave)


Shape = Callable[[Array, Array], list[Part]]
Coat = Callable[[Array, Array], Array]

SHAPES: dict[str, Shape] = {"cat": cat, "bird": bird, "car": car, "boat": boat, "tree": tree, "cactus": cactus}
HUES = {"cat": 0.06, "bird": 0.1, "car": 0.61, "boat": 0.66, "tree": 0.34, "cactus": 0.4}
COATS: dict[str, Coat] = {
    "tiger": bars,
    "leopard": dots,
    "hoopoe": rising,
    "thrush": dots,
    "taxi": checks,
    "racer": rows,
    "sloop": rows,
    "ketch": bars,
    "oak": dots,
    "pine": falling,
    "saguaro": bars,
    "cholla": rows,
}
