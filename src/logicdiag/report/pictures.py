"""Small pictures for a page: labels in their colours, photos, maps; as data URIs, and what they show in words."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from PIL import Image
from torch import Tensor

from ..engine.figure import CONFLICT, STRIPE
from ..logic.hierarchy import Hierarchy
from ..palette import NO_LEAF, leaf_colours

SIDE = 176
"""Most pixels of the longer side; pages are small, and screens show two for one."""
QUALITY = 80
NAMED = 4
"""Classes named in a picture's text."""
RIGHT, WRONG, UNKNOWN = (245, 245, 245), (213, 94, 0), (150, 150, 150)

Picture = UInt8[np.ndarray, "h w 3"]


def label_picture(leaf: Int64[Tensor, "h w"], h: Hierarchy, stripes: Bool[Tensor, "h w"] | None = None) -> Image.Image:
    """As `labels_shown`, small."""
    return Image.fromarray(labels_shown(shrunk(leaf), h, None if stripes is None else shrunk(stripes)))


def labels_shown(leaf: Int64[Tensor, "h w"], h: Hierarchy, stripes: Bool[Tensor, "h w"] | None = None) -> Picture:
    """Leaves in their colours; what has none is pale, and striped where `stripes` says so."""
    colours = np.vstack([leaf_colours(h), np.array([NO_LEAF], np.uint8)])
    picture: Picture = colours[leaf.cpu().numpy()]
    if stripes is not None:
        striped = stripes.cpu().numpy()
        rows, columns = np.indices(striped.shape)
        dark = (rows + columns) // 3 % 2 == 0
        picture[striped & dark] = STRIPE
        picture[striped & ~dark] = CONFLICT
    return picture


def mistake_picture(leaf: Int64[Tensor, "h w"], truth: Int64[Tensor, "h w"]) -> Image.Image:
    """Light where right, dark orange stripes where wrong, gray where the truth is not known."""
    small, true = shrunk(leaf).cpu().numpy(), shrunk(truth).cpu().numpy()
    rows, columns = np.indices(true.shape)
    dark = (rows + columns) // 2 % 2 == 0
    picture = np.full((*true.shape, 3), RIGHT, np.uint8)
    wrong = (small != true) & (true >= 0)
    picture[wrong] = WRONG
    picture[wrong & dark] = tuple(value // 2 for value in WRONG)
    picture[true < 0] = UNKNOWN
    return Image.fromarray(picture)


def photo_picture(image: Picture) -> Image.Image:
    photo = Image.fromarray(image)
    photo.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return photo


def shrunk(labels: Tensor) -> Tensor:
    """Every so many-th pixel, so that the longer side has at most SIDE; labels cannot be averaged."""
    height, width = labels.shape
    scale = max(height, width) / SIDE
    if scale <= 1:
        return labels
    tall, wide = max(1, round(height / scale)), max(1, round(width / scale))
    rows = ((torch.arange(tall) + 0.5) * height / tall).long()
    columns = ((torch.arange(wide) + 0.5) * width / wide).long()
    return labels[rows.to(labels.device)][:, columns.to(labels.device)]


def uri(picture: Image.Image, photo: bool = False) -> str:
    """The picture itself as an address: JPEG for photos, PNG with a palette for labels, whose colours are few."""
    memory = io.BytesIO()
    if photo:
        picture.save(memory, format="JPEG", quality=QUALITY)
    else:
        few = picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=256)
        exact = np.array_equal(np.asarray(few.convert("RGB")), np.asarray(picture))
        (few if exact else picture).save(memory, format="PNG", optimize=True)
    kind = "jpeg" if photo else "png"
    return f"data:image/{kind};base64,{base64.b64encode(memory.getvalue()).decode()}"


def in_words(leaf: Int64[Tensor, "h w"], h: Hierarchy, nothing: str = "no leaf") -> str:
    """What a picture of labels shows, for those who do not see it.

    >>> h = Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
    >>> in_words(torch.tensor([[2, 2, 1, -1]]), h)
    'sky 50 %, cat 25 %, no leaf 25 %'
    """
    counts = torch.bincount(leaf.flatten() + 1, minlength=len(h.leaves) + 1).tolist()
    total = max(1, sum(counts))
    shares = sorted(((count, -place) for place, count in enumerate(counts[1:]) if count), reverse=True)
    parts = [f"{h.leaves[-place]} {count / total:.0%}" for count, place in shares[:NAMED]]
    parts += [f"{len(shares) - NAMED} more classes"] * (len(shares) > NAMED)
    parts += [f"{nothing} {counts[0] / total:.0%}"] * bool(counts[0])
    return ", ".join(parts).replace("%", " %")
