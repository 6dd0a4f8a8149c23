"""What is read, and how views are made of it: the `data` part of a configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ViewConfig:
    """Strong views: colour jitter, gray, blur, and CutMix. Amounts as in FixMatch for segmentation (ST++, UniMatch)."""

    brightness: float = 0.5
    """Brightness is multiplied by a factor from 1 - brightness to 1 + brightness."""
    contrast: float = 0.5
    """Contrast likewise."""
    saturation: float = 0.5
    """Saturation likewise."""
    hue: float = 0.25
    """Hue is turned by up to this share of the colour circle, either way."""
    jitter: float = 0.8
    """The probability that brightness, contrast, saturation and hue change at all."""
    gray: float = 0.2
    """The probability that an image loses its colours."""
    blur: float = 0.5
    """The probability that an image is blurred."""
    cutmix: float = 0.5
    """The probability that a box of an image is taken from its neighbour in the batch."""


@dataclass
class ScenesConfig:
    """The built-in, generated data set (layout `scenes`)."""

    size: int = 96
    """Height and width of a scene in pixels."""
    train: int = 120
    """Training scenes, labelled and unlabelled together."""
    labeled: int = 12
    """How many of them are labelled."""
    val: int = 40
    """Scenes for evaluation."""
    seed: int = 0
    """Another seed makes other scenes."""
    noise: float = 0.1
    """Standard deviation of the pixel noise, where 1 is from black to white."""


@dataclass
class DataConfig:
    """Which images are read, which of them are labelled, and how they are cut and changed."""

    layout: str = "folder"
    """folder, scenes, voc2012, cityscapes, coco, camvid or oxford_pets."""
    root: str = ""
    """The data set's folder: absolute, or relative to the configuration file or to the current folder."""
    labeled: str = "train"
    """A split of the data set, or a list file: images whose masks are learned from."""
    unlabeled: str | list[str] | None = "rest"
    """`rest` (the training images that are neither labelled nor in `val`), a split, a folder, a glob, a list file,
    several, or null.
    """
    val: str | None = "val"
    """A split or a list file to evaluate on; null: none."""
    witness: str | None = None
    """A table (.csv) of what is known of unlabelled images from elsewhere: weights for siblings of the hierarchy, which
    psi weighs the teacher's outputs by; see `logicdiag witness`. `labels`: what the labelled images say of them, found
    out when training begins. null: nothing is.
    """
    hierarchy: str | dict[str, Any] | None = None
    """A built-in name, a YAML file or a mapping; null: the data set's own."""
    hierarchy_kind: str = "official"
    """official, random (the same tree with its leaves permuted) or none (no superclasses)."""
    hierarchy_seed: int = 0
    """Which permutation `random` takes."""
    crop: int = 513
    """Height and width of a training view in pixels."""
    scale: tuple[float, float] = (0.5, 2.0)
    """A training view is scaled by a factor between these."""
    flip: float = 0.5
    """The probability that a training view is mirrored."""
    sampling: str = "images"
    """Which labelled image comes next: images (each as often as any other) or classes (each class as often as any
    other, in one of the images that show it, and the view lies around one of its pixels).
    """
    workers: int = 4
    """Processes that read images; 0: none but the trainer itself."""
    cache: bool | str = "auto"
    """Whether images stay in memory once decoded: true, false, or auto (if all fit in 4 GiB and a quarter of it)."""
    views: ViewConfig = field(default_factory=ViewConfig)
    """Strong views."""
    scenes: ScenesConfig = field(default_factory=ScenesConfig)
    """The generated data set; used by layout `scenes` alone."""
