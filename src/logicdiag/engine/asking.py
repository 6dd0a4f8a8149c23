"""What a classifier says of photos: logits, image by image.

Images keep their shape as far as sides of a multiple of 32 pixels let them: a GPU prepares each layer for every new
size of images, which takes far longer than to look at one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ..data.dataset import Dataset, Photo
from ..data.open import open_dataset
from ..errors import ConfigError, DataError
from ..files import Progress
from ..models.classifier import Classifier, build_classifier
from .config import Config
from .distributed import choose_device
from .evaluate import read_ahead, together
from .inference import SMALLEST

SIZE = 288
"""Of an image's short side; a classifier trained at 224 pixels sees best at somewhat more."""
MULTIPLE = 32
"""Of which the long side is one, beyond the short one."""

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Asking:
    """The images of a data set, and the classifier that is asked about them."""

    dataset: Dataset
    classifier: Classifier
    size: int
    device: torch.device
    workers: int

    @torch.inference_mode()
    def logits(self, progress: Progress) -> Logits:
        """(images, classes) of the labelled images and, behind them, of the unlabelled ones. No mask is opened."""
        photos: list[Photo] = [*self.dataset.labeled, *self.dataset.unlabeled]
        found = np.zeros((len(photos), self.classifier.classes), np.float32)
        done = 0

        def load(number: int) -> tuple[int, Tensor]:
            image = torch.from_numpy(photos[number].image()).permute(2, 0, 1).float() / 255
            return number, resized(image[None], self.size)[0]

        loaded = read_ahead(load, range(len(photos)), max(2, self.workers))
        for batch in together(loaded, lambda one: tuple(one[1].shape[1:])):
            images = torch.stack([image for _, image in batch]).to(self.device)
            found[[number for number, _ in batch]] = self.classifier(images).float().cpu().numpy()
            done += len(batch)
            progress("images", done, len(photos))
        for photo, row in zip(photos, found, strict=True):
            if not np.isfinite(row).all():
                raise DataError(f"{photo.where}: the classifier says nothing finite about it; are its weights whole?")
        return found


def open_asking(config: Config, base: Path | None = None, size: int = SIZE) -> Asking:
    """The data set and the classifier of a configuration."""
    if size < SMALLEST:
        raise ConfigError(f"--size is {size}, expected at least {SMALLEST} pixels")
    device = choose_device(config.train.device)
    dataset = open_dataset(replace(config.data, witness=None), base)  # it may name the very table that is made here
    _check_names(dataset)
    classifier = build_classifier(config.model, base).to(device)
    return Asking(dataset, classifier, size, device, config.data.workers)


def resized(image: Tensor, size: int) -> Tensor:
    """With a short side of `size`; bicubic, as classifiers were trained.

    >>> [tuple(resized(torch.zeros(1, 3, *shape), 64).shape[2:]) for shape in [(50, 50), (50, 55), (50, 70), (90, 50)]]
    [(64, 64), (64, 64), (64, 96), (128, 64)]
    """
    height, width = image.shape[-2:]
    longer = size + round((max(height, width) / min(height, width) - 1) * size / MULTIPLE) * MULTIPLE
    shape = (size, longer) if height <= width else (longer, size)
    return F.interpolate(image, shape, mode="bicubic", align_corners=False, antialias=True).clamp(0, 1)


def _check_names(dataset: Dataset) -> None:
    if not dataset.unlabeled:
        raise DataError("data.unlabeled names no image, and a witness speaks about unlabelled ones")
    seen: dict[str, Photo] = {}
    for photo in dataset.unlabeled:
        if (other := seen.setdefault(photo.name, photo)) is not photo:
            both = f"{other.where} and {photo.where}"
            raise DataError(f"data.unlabeled: {both} have one name, {photo.name!r}; the table goes by names")
