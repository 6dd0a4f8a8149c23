"""The classifier that an encoder was trained as: timm's model of that name, and the names of its classes."""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import OptionError, WeightsError
from .encoder import normalisation
from .segmenter import ModelConfig
from .torchvision_shim import import_timm
from .weights import load_classifier

IMAGENET = 1000
"""Classes of the classifiers whose classes have names here."""


class Classifier(nn.Module):
    """Images in [0, 1], normalised as the encoder's are -> one logit for each of its `classes`."""

    mean: Tensor
    std: Tensor

    def __init__(self, body: nn.Module, classes: int, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.body, self.classes = body, classes
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c"]:
        logits: Tensor = self.body((image - self.mean) / self.std)
        return logits


def build_classifier(config: ModelConfig, base: Path | None = None) -> Classifier:
    """The classifier of a configuration's `encoder` and `weights`, to be asked and not to be trained."""
    if config.encoder == "small":
        raise OptionError(
            "model.encoder is 'small', which was never trained to classify; "
            "expected a model of timm, such as tf_efficientnet_lite0 or resnet50"
        )
    if config.weights is None:
        raise WeightsError("model.weights is null, and random weights know no class; expected hub, lite or a file")
    body = load_classifier(config.encoder, config.weights, base)
    about = body.pretrained_cfg
    if about.get("fixed_input_size"):
        size = " x ".join(map(str, about["input_size"][1:]))
        raise OptionError(f"model.encoder is {config.encoder!r}, which takes images of {size} pixels and no others")
    return Classifier(body, body.num_classes, *normalisation(config.encoder, about)).eval()


def class_names(classes: int) -> list[tuple[str, ...]] | None:
    """The names of each class: ImageNet's, if there are 1000; None: they are not known.

    >>> class_names(1000)[281], class_names(10)
    (('tabby', 'tabby cat'), None)
    """
    if classes != IMAGENET:
        return None
    info = import_timm().data.ImageNetInfo()
    return [tuple(name.strip() for name in info.index_to_description(i).split(",")) for i in range(classes)]
