"""Encoder, decoder and head: images -> logits, one per concept of the hierarchy (or one per leaf)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import OptionError, choose
from ..logic.hierarchy import Hierarchy
from ..logic.leaves import Leaves
from .decoder import Decoder
from .depthwise import fuse_depthwise
from .encoder import Encoder, build_encoder
from .norm_act import fuse_norms
from .resize import resize
from .weights import load_weights

HEADS = {
    "hierarchical": "one sigmoid for each concept of the hierarchy",
    "flat": "a softmax over the leaves",
}


@dataclass(frozen=True)
class ModelConfig:
    """What to build; the part `model:` of a configuration."""

    encoder: str = "resnet50"  # `small`, or a name of timm's
    output_stride: int = 16  # 8 or 16
    head: str = "hierarchical"  # hierarchical | flat
    decision: str = "leaf"  # leaf | path | tree: what decides with the hierarchical head, and the leaves' loss looks at
    weights: str | None = None  # hub, hub:NAME, lite, or a file (.safetensors, .pth); None: random
    dropout: float = 0.0  # of whole channels, in the decoder
    decoder_channels: int | None = None  # None: 256, and 64 for `small`
    head_bias: float | None = -3.0  # what the head's logits start at (most labels are false); a flat head feels none


class Segmenter(nn.Module):
    """Logits at the size of the image, which holds values in [0, 1] and may be of any size from 32 pixels on.

    >>> from logicdiag import Hierarchy
    >>> h = Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
    >>> model = build_model(ModelConfig(encoder="small"), h).eval()
    >>> logits = model(torch.rand(1, 3, 65, 97))
    >>> logits.shape, model.leaf_logits(logits).shape
    (torch.Size([1, 4, 65, 97]), torch.Size([1, 3, 65, 97]))
    """

    def __init__(
        self, encoder: Encoder, decoder: Decoder, hierarchy: Hierarchy, head: str, width: int, decision: str = "leaf"
    ) -> None:
        super().__init__()
        self.head = choose("model.head", head, HEADS)
        self.channels = len(hierarchy.names if head == "hierarchical" else hierarchy.leaves)
        self.encoder, self.decoder = encoder, decoder
        self.width = width
        """Channels of the decoder's features."""
        self.classifier = nn.Conv2d(width, self.channels, 1)
        self.leaves = Leaves(hierarchy, decision)

    def forward(self, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h w"]:
        return self.decode(self.features(image), (image.shape[-2], image.shape[-1]))

    def features(self, image: Float[Tensor, "b 3 h w"]) -> tuple[Float[Tensor, "b _ _ _"], ...]:
        """What the decoder takes: features at stride 4 and at the output stride."""
        features: tuple[Tensor, ...] = self.encoder(image)
        return features

    def decode(self, features: tuple[Tensor, ...], size: tuple[int, int]) -> Float[Tensor, "b c h w"]:
        """Logits of `size` (height, width); those of one channel stand together in memory, as reasoning reads them."""
        return self._classify(self.decoder(*features), size)

    def with_features(
        self, image: Float[Tensor, "b 3 h w"]
    ) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b _ _ _"]]:
        """The logits, and the decoder's features at stride 4 that the head made them of."""
        features: Tensor = self.decoder(*self.features(image))
        return self._classify(features, (image.shape[-2], image.shape[-1])), features

    def _classify(self, features: Tensor, size: tuple[int, int]) -> Tensor:
        logits: Tensor = self.classifier(features)
        return resize(logits.contiguous(), (size[0], size[1]))

    def probs(self, logits: Float[Tensor, "b c *size"]) -> Float[Tensor, "b c *size"]:
        """One probability per channel, in float32 at least: half precision has no number between 1 - 1e-3 and 1."""
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        return logits.sigmoid() if self.head == "hierarchical" else logits.softmax(dim=1)

    @property
    def leaf_channels(self) -> Tensor:
        return self.leaves.channels

    def leaf_logits(self, logits: Float[Tensor, "b c *size"]) -> Float[Tensor, "b leaf *size"]:
        """What decides at inference, in the order of `hierarchy.leaves`."""
        return self.leaves.scores(logits) if self.head == "hierarchical" else logits

    def leaf_probs(self, logits: Float[Tensor, "b c *size"]) -> Float[Tensor, "b leaf *size"]:
        """How sure the leaves are: their own sigmoids, or a softmax where leaves are held against each other."""
        if self.head == "hierarchical" and self.leaves.decision == "leaf":
            return self.probs(logits.index_select(1, self.leaf_channels))
        return self.leaf_logits(logits).float().softmax(dim=1)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """All parameters: those of the encoder, which may come trained, and those that start anew."""
        return {
            "encoder": list(self.encoder.parameters()),
            "decoder": [*self.decoder.parameters(), *self.classifier.parameters()],
        }


def build_model(config: ModelConfig, hierarchy: Hierarchy, base: Path | None = None) -> Segmenter:
    """The model of a configuration, with its weights loaded; a relative path of theirs is sought in `base` first.

    Random weights come from torch's default generator.
    """
    choose("model.head", config.head, HEADS)
    if not 0 <= config.dropout < 1:
        raise OptionError(f"model.dropout is {config.dropout}, expected a number from 0 to below 1")
    if config.decoder_channels is not None and config.decoder_channels < 1:
        raise OptionError(f"model.decoder_channels is {config.decoder_channels}, expected at least 1, or nothing")
    encoder = build_encoder(config.encoder, config.output_stride)
    width = config.decoder_channels or encoder.decoder_channels
    decoder = Decoder(
        encoder.low_channels, encoder.high_channels, width, encoder.rates, encoder.separable, config.dropout
    )
    model = Segmenter(encoder, decoder, hierarchy, config.head, width, config.decision)
    nn.init.normal_(model.classifier.weight, std=0.01)
    nn.init.constant_(model.classifier.bias, config.head_bias or 0.0)  # type: ignore[arg-type]  # it has a bias
    if config.weights is not None:
        load_weights(model, config.weights, base)
    return fuse_norms(fuse_depthwise(model))
