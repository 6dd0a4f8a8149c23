"""What a run does for a method between two steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from ..data.dataset import Dataset, Photo
from ..errors import DataError, LogicDiagError
from ..models.segmenter import Segmenter
from .config import Config
from .distributed import World
from .evaluate import read_ahead
from .inference import predict_logits
from .optimizer import Optimizer


class Pause:
    def __init__(self, config: Config, dataset: Dataset, here: World, optimizer: Optimizer) -> None:
        self.config, self.dataset, self.here, self.optimizer = config, dataset, here, optimizer

    @property
    def steps(self) -> int:
        return self.config.train.steps

    def measure(self, networks: Sequence[Segmenter], score: Callable[[Sequence[Tensor]], float]) -> list[float]:
        """The score of each unlabelled image, by the leaves that the networks predict at its pixels.

        Processes share the images, and all have all scores.
        """
        items, here = self.dataset.unlabeled, self.here
        scores = torch.zeros(len(items), dtype=torch.float64)
        mine = range(here.rank, len(items), here.size)
        modes, failed = [network.training for network in networks], None
        for network in networks:
            network.eval()
        try:
            images = read_ahead(Photo.image, [items[number] for number in mine], self.config.data.workers)
            for number, image in zip(mine, images, strict=True):
                scores[number] = score([self._leaves(network, image) for network in networks])
        except LogicDiagError as error:
            failed = error  # the other processes wait for this one: meet them first
        for network, mode in zip(networks, modes, strict=True):
            network.train(mode)
        if here.any(failed is not None):
            raise failed or DataError("another process could not read an unlabelled image, and says which")
        if here.size > 1:
            scores = here.add(scores.to(here.device))
        together: list[float] = scores.tolist()
        return together

    def _leaves(self, network: Segmenter, image: NDArray[np.uint8]) -> Int64[Tensor, "h w"]:
        view = torch.from_numpy(image).to(self.here.device).permute(2, 0, 1)[None].float() / 255
        logits = predict_logits(network, view, self.config.inference, self.config.train.precision)
        return network.leaf_logits(logits).argmax(1)[0]

    def restart(self) -> None:
        """Let the optimiser forget how it was moving."""
        self.optimizer.restart()
