"""Features of which whole channels are dropped: what UniMatch and MKD perturb beside images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from ..data.views import draws
from ..errors import ConfigError
from ..models.encoder import Encoder
from ..plan import Plan


class FeatureDropout:
    """Each channel falls with probability `p`; the rest is scaled up. What falls is keyed by seed, step and place."""

    def __init__(self, p: float, seed: int) -> None:
        if not 0 <= p < 1:
            raise ConfigError(f"method.feature_dropout is {p}, expected from 0 to below 1")
        self.p, self.seed = p, seed

    def plan(self, encoder: Encoder, index: int, slots: Sequence[int]) -> Plan:
        """Which channels of each of the two feature maps are kept."""
        plan = {}
        for level, channels in enumerate((encoder.low_channels, encoder.high_channels)):
            sources = draws(self.seed, f"features{level}", index, slots)
            plan[str(level)] = np.stack([source.random(channels) >= self.p for source in sources])
        return plan

    def __call__(self, features: Float[Tensor, "b c h w"], kept: Bool[Tensor, "b c"]) -> Float[Tensor, "b c h w"]:
        scale = kept.to(features.dtype) / (1 - self.p)
        return features * scale[:, :, None, None]
