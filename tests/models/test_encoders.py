"""Each encoder, by the same tests; what is refused."""

import subprocess
import sys

import pytest
import torch

from logicdiag.errors import OptionError
from logicdiag.models import ModelConfig, build_model
from logicdiag.models.encoder import build_encoder
from tests.models.tester import HIERARCHY, EncoderTester, built, images

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
LITE = {"mean": (127 / 255,) * 3, "std": (128 / 255,) * 3}


class TestSmall(EncoderTester):
    encoder, decoder_channels = "small", None
    mean, std = (0.5,) * 3, (0.25,) * 3

    def test_is_small(self, model):
        assert 0.3e6 < sum(p.numel() for p in model.parameters()) < 0.5e6


class TestSmallStride8(TestSmall):
    output_stride = 8


class TestResNet50Stride8(EncoderTester):
    encoder, output_stride = "resnet50", 8
    mean, std = IMAGENET["mean"], IMAGENET["std"]


class TestResNet101(EncoderTester):
    encoder = "resnet101"
    mean, std = IMAGENET["mean"], IMAGENET["std"]


class TestXception65(EncoderTester):
    encoder = "xception65"
    mean, std = (0.5,) * 3, (0.5,) * 3


class TestLite0(EncoderTester):
    encoder = "tf_efficientnet_lite0"
    mean, std = LITE["mean"], LITE["std"]


class TestLite1Stride8(EncoderTester):
    encoder, output_stride = "tf_efficientnet_lite1", 8
    mean, std = LITE["mean"], LITE["std"]


class TestLite2(EncoderTester):
    encoder = "tf_efficientnet_lite2"
    mean, std = LITE["mean"], LITE["std"]


@pytest.mark.parametrize("output_stride", [8, 16])
def test_resnet50_at_both_strides(output_stride):
    encoder = build_encoder("resnet50", output_stride).eval()
    with torch.no_grad():
        low, high = encoder(images(1, 65, 65))
    assert (low.shape, high.shape[-1]) == ((1, 256, 17, 17), 64 // output_stride + 1)


def test_light_encoders_get_separable_convolutions():
    def depthwise(encoder: str) -> int:
        decoder = built(encoder=encoder, decoder_channels=32).decoder
        return sum(isinstance(m, torch.nn.Conv2d) and m.groups > 1 for m in decoder.modules())

    assert (depthwise("tf_efficientnet_lite0"), depthwise("small"), depthwise("resnet50")) == (5, 5, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": "resnet5o"}, "model.encoder is 'resnet5o', expected 'small' or a model of timm \\(.*'resnet50'"),
        ({"encoder": "zzzzzzzz"}, "model.encoder is 'zzzzzzzz', expected 'small' or a model of timm$"),
        ({"encoder": "vgg11"}, "model.encoder is 'vgg11', which has no feature maps at stride 4 and, last, at output"),
        ({"encoder": "vit_tiny_patch16_224"}, "'vit_tiny_patch16_224', which has no feature maps"),
        ({"encoder": "swin_tiny_patch4_window7_224"}, "its feature maps are at strides 4, 8, 16, 32"),
        ({"encoder": "small", "output_stride": 32}, "model.output_stride is 32, expected 8 or 16"),
    ],
)
def test_refused(options, message):
    with pytest.raises(OptionError, match=message):
        build_model(ModelConfig(**options), HIERARCHY)


def test_small_needs_neither_timm_nor_torchvision():
    script = (
        "import sys; sys.modules['timm'] = sys.modules['torchvision'] = None\n"
        "from logicdiag import Hierarchy; from logicdiag.models import ModelConfig, build_model\n"
        "build_model(ModelConfig(encoder='small'), Hierarchy.from_dict(['a', 'b']))"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)
