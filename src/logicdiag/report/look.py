"""What a run's network and its rules make of one image; everything that is shown of an image starts here."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from ..data.dataset import IGNORE, Masked, Photo
from ..data.files import ImageFile, is_image
from ..data.open import open_split
from ..engine.inference import InferenceConfig, predict_logits, where_to_run
from ..engine.run import Run
from ..errors import DataError, RunError, hint
from ..logic.diagnosis import Diagnoser
from ..logic.repair import Result

NONE = -1
"""In place of a leaf."""


@dataclass(frozen=True)
class Look:
    """One image and what is said of it; maps are (height, width), leaves are indices into `hierarchy.leaves`."""

    image: UInt8[np.ndarray, "h w 3"]
    probs: Float[Tensor, "1 c h w"]
    """Of every concept, or of the leaves alone from a flat head."""
    chosen: Int64[Tensor, "h w"]
    """The likeliest leaf, as inference takes it."""
    confidence: Float[Tensor, "h w"]
    """The probability of the likeliest leaf."""
    sure: Int64[Tensor, "h w"]
    """Psi by threshold: the likeliest leaf where it is likely enough, else -1."""
    result: Result | None
    """The diagnosis, with truth degrees over this image; None for a flat head."""
    before: Int64[Tensor, "h w"]
    """The leaf that the outputs above 0.5 say, -1 where they break a rule; of a flat head, the likeliest."""

    @property
    def after(self) -> Int64[Tensor, "h w"] | None:
        return None if self.result is None else self.result.leaf[0]

    @property
    def conflict(self) -> Bool[Tensor, "h w"] | None:
        return None if self.result is None else self.result.conflict[0]


class Viewer:
    """A network of a run, with the run's rules, strategy and way of predicting images."""

    def __init__(
        self,
        run: Run,
        which: str = "last",
        device: torch.device | str | None = None,
        precision: str | None = None,
        inference: InferenceConfig | None = None,
        seed: int = 0,
    ) -> None:
        self.run, self.which, self.seed = run, which, seed
        self.device, self.precision = where_to_run(device, precision, run.config.train.precision)
        self.inference = inference or run.config.inference
        self.model = run.model(which, self.device)
        psi = run.config.psi
        self.diagnoser: Diagnoser | None = None
        if self.model.head == "hierarchical":
            self.diagnoser = Diagnoser(run.knowledge, psi.strategy, psi.q, psi.connectives, psi.quantifier, psi.budget)

    def look(self, image: UInt8[np.ndarray, "h w 3"]) -> Look:
        return self.read(image, self._logits(image))

    def predict(self, image: UInt8[np.ndarray, "h w 3"]) -> Int64[Tensor, "h w"]:
        """The likeliest leaf alone."""
        return self.model.leaf_logits(self._logits(image)).argmax(1)[0]

    def _logits(self, image: UInt8[np.ndarray, "h w 3"]) -> Float[Tensor, "1 c h w"]:
        shown = torch.from_numpy(image).to(self.device).permute(2, 0, 1)[None].float() / 255
        return predict_logits(self.model, shown, self.inference, self.precision)

    @torch.no_grad()
    def read(self, image: UInt8[np.ndarray, "h w 3"], logits: Float[Tensor, "1 c h w"]) -> Look:
        """The same from logits that are there already."""
        probs = self.model.probs(logits)
        chosen = self.model.leaf_logits(logits).max(1).indices  # on a CPU ten times as fast as argmax
        confidence = self.model.leaf_probs(logits).gather(1, chosen[:, None])[:, 0]
        sure = torch.where(confidence >= self.run.config.psi.threshold, chosen, NONE)
        look = Look(image, probs, chosen[0], confidence[0], sure[0], None, chosen[0])
        return look if self.diagnoser is None else self.repaired(look)

    def repaired(self, look: Look) -> Look:
        """What the network said as it was, and the repair by this viewer's rules."""
        result = self.diagnose(look.probs)
        return replace(look, result=result, before=torch.where(result.conflict, NONE, result.leaf)[0])

    def under(self, diagnoser: Diagnoser, seed: int) -> Viewer:
        """The same network under other rules."""
        other = copy(self)
        other.diagnoser, other.seed = diagnoser, seed
        return other

    def diagnose(self, probs: Float[Tensor, "1 c h w"]) -> Result:
        """Truth degrees are over the image, and draws follow from the seed: asked again, it says the same."""
        assert self.diagnoser is not None
        return self.diagnoser(probs, generator=torch.Generator(self.device).manual_seed(self.seed))


def validation(run: Run) -> tuple[Masked, ...]:
    """The images that the run was validated on, which have masks that may be opened."""
    held_out = open_split(run.config.data, run.base, None)
    if held_out.hierarchy != run.hierarchy:
        raise RunError(f"{run.path}: the data set has another hierarchy now than the run was trained on")
    return held_out.items


def find_image(run: Run, name: str) -> Photo:
    """An image file, or an image of the run's data by its name; those of `data.val` and labelled ones have masks."""
    path = Path(name)
    if path.is_file():
        return Photo(path.name, ImageFile(path))
    if is_image(path) or path.is_dir():
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        what = "is a folder, expected an image" if path.is_dir() else f"there is no such file{hint(path.name, beside)}"
        raise DataError(f"{name}: {what}")
    items = _by_name(validation(run))
    if name not in items:
        data = run.dataset()
        items = _by_name((*data.unlabeled, *data.labeled, *data.val))
    if name not in items:
        raise DataError(f"{name}: neither a file nor an image in the data of {run.path}{hint(name, items)}")
    return items[name]


def _by_name(photos: Iterable[Photo]) -> dict[str, Photo]:
    return {photo.name: photo for photo in photos}


def truth_of(photo: Photo) -> Int64[Tensor, "h w"] | None:
    """Leaves, -1 where a pixel counts nowhere; None for a photo that has no mask."""
    if not isinstance(photo, Masked):
        return None
    mask = torch.from_numpy(photo.mask()).long()
    return torch.where(mask == IGNORE, NONE, mask)
